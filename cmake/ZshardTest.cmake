# zshard_unit_test(NAME SOURCES... [LIBS ...] [LABELS ...] [TIMEOUT seconds])
#
# A cmocka program. Labels decide where tests/run.sh runs it: quick (every build, sanitizers too),
# full (release), long (by hand), and threads (under TSan as well). Default: quick and full. Every test
# of this kind is labelled unit besides, which is what the clang build runs. Timeouts are for what hangs: a machine that
# is five times slower, or busy, must not meet them.
function(zshard_unit_test name)
    cmake_parse_arguments(T "" "TIMEOUT" "SOURCES;LIBS;LABELS" ${ARGN})
    if(NOT T_SOURCES)
        set(T_SOURCES ${T_UNPARSED_ARGUMENTS})
    endif()
    if(NOT T_LABELS)
        set(T_LABELS quick full)
    endif()
    if(NOT T_TIMEOUT)
        set(T_TIMEOUT 600)
    endif()
    add_executable(${name} ${T_SOURCES})
    target_link_libraries(${name} PRIVATE ${T_LIBS} cmocka)
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES LABELS "${T_LABELS};unit" TIMEOUT ${T_TIMEOUT}
        ENVIRONMENT "ZSHARD_BUILD=${CMAKE_BINARY_DIR};ZSHARD_SANITIZE=${ZSHARD_SANITIZE}")
endfunction()

# zshard_script_test(NAME COMMAND args... LABELS ... [TIMEOUT seconds])
#
# A script (bash or python3, standard library only) that runs the built programs. It finds them by
# ZSHARD_BUILD in its environment and exits 77 for "skipped, and I said why".
function(zshard_script_test name)
    cmake_parse_arguments(T "" "TIMEOUT" "COMMAND;LABELS" ${ARGN})
    if(NOT T_TIMEOUT)
        set(T_TIMEOUT 600)
    endif()
    add_test(NAME ${name} COMMAND ${T_COMMAND} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(${name} PROPERTIES LABELS "${T_LABELS}" TIMEOUT ${T_TIMEOUT}
        SKIP_RETURN_CODE 77
        ENVIRONMENT "ZSHARD_BUILD=${CMAKE_BINARY_DIR};ZSHARD_SANITIZE=${ZSHARD_SANITIZE}")
endfunction()

# Labels say where a test runs. tests/run.sh has the table of its stages.
#
#   quick     tests/run.sh quick; takes less than 2 s, which tests/report.py checks
#   full      the release build of each run
#   asan      under ASan and UBSan in each run: tests that read bytes from outside, or run out of memory
#   tsan      under TSan in each run: tests of threads
#   threads   under TSan in the nightly run: all tests that TSan can watch
#   long      only in the nightly run
#   unit      every cmocka program
#   sanitized set here: `full` and `asan`, with a COST of 6 or more. In a run that has the ASan stage (as optimized as the
#             release), the release build leaves these tests to it. The nightly run has them in both.
#
# The target tests_LABEL, for asan and tsan, is what a run with that label needs: its cmocka programs, and all programs
# and libraries that are no tests.
#
# The nightly run gives all tests of `full` to ASan, and sets ZSHARD_LONG, which makes campaigns longer
# (tests/ztest.h, tests/integ/harness.py). Labels of GPUs are in CONTRIBUTING.md.
#
# Tests run in parallel, more of them than there are processors. A test that does not tolerate that has a lock:
#
#   LOCKS drive    saturates the drive, or fills a file system
#   LOCKS clock    compares real time with a bound that a busy machine would miss
#
# A test that needs the machine for itself is RUN_SERIAL. Such tests run after all others, so there are few.
# TIMEOUT is for tests that hang: a machine that is five times slower, or busy, must not reach it. COST is the
# time in seconds of a long test: long tests begin first.
#
# Each test has a folder of its own for Open MPI's sessions: two runs of mpirun that start at the same time in one folder
# may fail ("A call to mkdir was unable to create the desired directory: File exists").
set(zshard_test_environment "ZSHARD_BUILD=${CMAKE_BINARY_DIR}" "ZSHARD_SANITIZE=${ZSHARD_SANITIZE}")
# Tests that need PyTorch are forked from one process that has imported it (tests/python/zygote.py). Under a sanitizer
# each is started on its own.
if(NOT ZSHARD_SANITIZE)
    list(APPEND zshard_test_environment "ZSHARD_ZYGOTE=${CMAKE_BINARY_DIR}/zygote")
endif()

foreach(label asan tsan)
    add_custom_target(tests_${label})
endforeach()

# Makes a program part of tests_LABEL, for each of the labels that has one.
function(zshard_test_needs program)
    foreach(label IN LISTS ARGN)
        if(TARGET tests_${label})
            add_dependencies(tests_${label} ${program})
        endif()
    endforeach()
endfunction()

# Gives unit tests one more label.
function(zshard_test_label label)
    foreach(test IN LISTS ARGN)
        set_property(TEST ${test} APPEND PROPERTY LABELS ${label})
        zshard_test_needs(${test} ${label})
    endforeach()
endfunction()

# zshard_mpi_folder(VAR NAME): sets VAR to the environment variable that gives test NAME that folder.
macro(zshard_mpi_folder var name)
    set(${var} "OMPI_MCA_orte_tmpdir_base=${CMAKE_BINARY_DIR}/mpi/${name}")
endmacro()

# Sets the common properties of all kinds of test. Arguments: T_LABELS and the like of the caller, and variables
# of the environment.
macro(zshard_test_properties name)
    if(NOT T_TIMEOUT)
        set(T_TIMEOUT 600)
    endif()
    zshard_mpi_folder(mpi_folder ${name})
    if("full" IN_LIST T_LABELS AND "asan" IN_LIST T_LABELS AND T_COST GREATER_EQUAL 6)
        list(APPEND T_LABELS sanitized)
    endif()
    set_tests_properties(${name} PROPERTIES LABELS "${T_LABELS}" TIMEOUT ${T_TIMEOUT} SKIP_RETURN_CODE 77
        ENVIRONMENT "${zshard_test_environment};${mpi_folder};${ARGN}")
    if(T_LOCKS)
        set_tests_properties(${name} PROPERTIES RESOURCE_LOCK "${T_LOCKS}")
    endif()
    if(T_COST)
        set_tests_properties(${name} PROPERTIES COST ${T_COST})
    endif()
endmacro()

# zshard_unit_test(NAME SOURCES... [LIBS ...] [LABELS ...] [LOCKS ...] [TIMEOUT seconds] [COST seconds])
#
# A cmocka program. Labels by default: quick, full and asan.
function(zshard_unit_test name)
    cmake_parse_arguments(T "" "TIMEOUT;COST" "SOURCES;LIBS;LABELS;LOCKS" ${ARGN})
    if(NOT T_SOURCES)
        set(T_SOURCES ${T_UNPARSED_ARGUMENTS})
    endif()
    if(NOT T_LABELS)
        set(T_LABELS quick full asan)
    endif()
    list(APPEND T_LABELS unit)
    add_executable(${name} ${T_SOURCES})
    set_property(GLOBAL APPEND PROPERTY zshard_unit_tests ${name})
    target_link_libraries(${name} PRIVATE ${T_LIBS} cmocka)
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
    add_test(NAME ${name} COMMAND ${name})
    zshard_test_properties(${name})
    zshard_test_needs(${name} ${T_LABELS})
endfunction()

# zshard_test_form(NAME PROGRAM LABELS ... [ENVIRONMENT ...] [LOCKS ...] [TIMEOUT seconds] [COST seconds])
#
# Another form of a cmocka program, longer or shorter, which is selected by its environment.
function(zshard_test_form name program)
    cmake_parse_arguments(T "" "TIMEOUT;COST" "LABELS;LOCKS;ENVIRONMENT" ${ARGN})
    add_test(NAME ${name} COMMAND ${program})
    zshard_test_properties(${name} ${T_ENVIRONMENT})
    zshard_test_needs(${program} ${T_LABELS})
endfunction()

# zshard_script_test(NAME COMMAND args... LABELS ... [LOCKS ...] [TIMEOUT seconds] [COST seconds] [MPI])
#
# A script (bash or python3, standard library only) that runs the built programs. It finds them by
# ZSHARD_BUILD in its environment and exits 77 if it is skipped, after it printed the reason. OpenBLAS and PyTorch use
# one thread: with matrices as small as those of tests, their other threads only spin. MPI: ASan does not look for leaks,
# since Open MPI leaks memory in plugins that have no names by then.
function(zshard_script_test name)
    cmake_parse_arguments(T "MPI" "TIMEOUT;COST" "COMMAND;LABELS;LOCKS" ${ARGN})
    add_test(NAME ${name} COMMAND ${T_COMMAND} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    if(T_MPI AND ZSHARD_SANITIZE STREQUAL "address")
        list(APPEND T_ENVIRONMENT "ASAN_OPTIONS=detect_leaks=0")
    endif()
    zshard_test_properties(${name} "OPENBLAS_NUM_THREADS=1" "OMP_NUM_THREADS=1" ${T_ENVIRONMENT})
endfunction()

# zshard_test_needs_all(FOLDER): what all tests need: each program and library of the folder and those below that is built
# by default, and is no cmocka program.
function(zshard_test_needs_all folder)
    get_property(targets DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
    get_property(unit_tests GLOBAL PROPERTY zshard_unit_tests)
    foreach(target IN LISTS targets)
        get_target_property(type ${target} TYPE)
        get_target_property(excluded ${target} EXCLUDE_FROM_ALL)
        if(type MATCHES "EXECUTABLE|SHARED|MODULE" AND NOT excluded AND NOT target IN_LIST unit_tests)
            zshard_test_needs(${target} asan tsan)
        endif()
    endforeach()
    get_property(folders DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
    foreach(below IN LISTS folders)
        zshard_test_needs_all(${below})
    endforeach()
endfunction()

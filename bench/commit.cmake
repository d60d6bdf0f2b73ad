# Writes OUT: the commit that is being built, "-dirty" when tracked files differ from it; where there is
# no git, what ZSHARD_COMMIT in the environment says. Runs at each build and touches OUT only when it
# changes.
execute_process(
    COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=40 --exclude=*
    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE rc)
if(NOT rc EQUAL 0)
    set(commit "$ENV{ZSHARD_COMMIT}")
endif()
if(commit STREQUAL "")
    set(commit "unknown")
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "#define ZBENCH_COMMIT \"${commit}\"\n")

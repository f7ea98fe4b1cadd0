# cmake -DBUILD= -DSOURCE= -P readme_test.cmake
# Runs the examples as README.md does, with this build for its build/dev.
file(STRINGS ${SOURCE}/README.md commands REGEX "^build/dev/examples/")
list(LENGTH commands num_commands)
if(NOT num_commands EQUAL 3)
  message(FATAL_ERROR "README.md: expected 3 commands of examples, got ${num_commands}")
endif()
foreach(command IN LISTS commands)
  string(REGEX REPLACE "^build/dev" "${BUILD}" command "${command}")
  execute_process(COMMAND sh -c "${command}" WORKING_DIRECTORY ${SOURCE}
    COMMAND_ERROR_IS_FATAL ANY COMMAND_ECHO STDOUT)
endforeach()

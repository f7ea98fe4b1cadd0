# Runs BINARY --gtest_filter=FILTER twice. As it is, the tests must pass; with the fault FAULT put
# back, they must fail and print MESSAGE (a regular expression).
function(run_tests out_code out_text)
  execute_process(COMMAND ${CMAKE_COMMAND} -E env ${ARGN} ${BINARY} --gtest_filter=${FILTER}
    RESULT_VARIABLE code OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(text MATCHES "Running 0 tests")
    message(FATAL_ERROR "no test matches '${FILTER}':\n${text}")
  endif()
  set(${out_code} "${code}" PARENT_SCOPE)
  set(${out_text} "${text}" PARENT_SCOPE)
endfunction()

run_tests(code text --unset=QUIRE_REVERT)
if(NOT code EQUAL 0)
  message(FATAL_ERROR "without the fault the tests fail:\n${text}")
endif()
run_tests(code text QUIRE_REVERT=${FAULT})
if(NOT code EQUAL 1)
  message(FATAL_ERROR "with fault ${FAULT} put back the tests end with ${code}, expected 1:\n${text}")
endif()
if(NOT text MATCHES "${MESSAGE}")
  message(FATAL_ERROR "with fault ${FAULT} put back nothing says '${MESSAGE}':\n${text}")
endif()
message(STATUS "fault ${FAULT} is caught: ${CMAKE_MATCH_0}")

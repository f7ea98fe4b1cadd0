# cmake -DEXAMPLE= -DMODEL= -P engine_minimal_test.cmake
# Expects the example to stream an answer and to continue a text, and to refuse a folder that is none.
execute_process(COMMAND ${EXAMPLE} ${MODEL} --dummy OUTPUT_VARIABLE output
  COMMAND_ERROR_IS_FATAL ANY COMMAND_ECHO STDOUT)
message("${output}")
if(NOT output MATCHES "^memory plan\n.*\n\n.+\n\nOnce upon a time.+\n\\([0-9]+ tokens, [a-z]+\\)\n$")
  message(FATAL_ERROR "expected the memory plan, an answer, and the text with what follows it")
endif()

execute_process(COMMAND ${EXAMPLE} ${MODEL}/none RESULT_VARIABLE result ERROR_VARIABLE errors)
if(NOT result EQUAL 1 OR NOT errors MATCHES "^error: .*none")
  message(FATAL_ERROR "no such folder: expected exit 1 and the reason, got ${result}: ${errors}")
endif()

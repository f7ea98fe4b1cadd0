# cmake -DEXAMPLE= -DSOURCE= -DDEVICE=cpu|cuda [-DHAS_CUDA=] [-DREPORT_DEVICE=] -P engine_minimal_test.cmake
# Expects the example to answer on the device, and to name what it refuses. On cuda it says "skipped:"
# where REPORT_DEVICE, the program cuda_report_device, finds no GPU.
if(DEVICE STREQUAL cuda)
  execute_process(COMMAND ${REPORT_DEVICE} RESULT_VARIABLE result OUTPUT_VARIABLE report)
  if(NOT result EQUAL 0)
    message("skipped: ${report}")
    return()
  endif()
endif()

# The arguments are answered with an output that matches the pattern.
function(expect_answer pattern)
  execute_process(COMMAND ${EXAMPLE} ${ARGN} OUTPUT_VARIABLE output
    COMMAND_ERROR_IS_FATAL ANY COMMAND_ECHO STDOUT)
  message("${output}")
  if(NOT output MATCHES
      "^memory plan\n.*\non [^\n]+\n\n${pattern}\n\nOnce upon a time.+\n\\([0-9]+ tokens, [a-z]+\\)\n$")
    message(FATAL_ERROR "expected the memory plan, the device, '${pattern}' and a text continued")
  endif()
endfunction()

function(expect_refused pattern)
  execute_process(COMMAND ${EXAMPLE} ${ARGN} RESULT_VARIABLE result ERROR_VARIABLE errors
    OUTPUT_QUIET)
  if(NOT result EQUAL 1 OR NOT errors MATCHES "^error: ${pattern}")
    message(FATAL_ERROR "${ARGN}: expected exit 1 and '${pattern}', got ${result}: ${errors}")
  endif()
endfunction()

expect_answer(".*= 26 dollars.\n#### 26" ${SOURCE}/models/quire-grade-school --device ${DEVICE}
  "Tom buys 4 pencils at $3 each and 2 books at $7 each. How much does Tom spend in total?")

set(tiny ${SOURCE}/src/testing/testdata/tiny_chat)
if(DEVICE STREQUAL cpu)
  expect_answer(".+" ${tiny} --dummy --device auto)
  expect_refused("model: .*none" ${tiny}/none)
  expect_refused("expected the folder")
  expect_refused("--device: expected auto, cpu or cuda, got 'gpu'" ${tiny} --device gpu)
  expect_refused("--device: .* got nothing" ${tiny} --device)
  expect_refused("expected --device or --dummy, got '--threads'" ${tiny} --threads 4)
  if(NOT HAS_CUDA)
    expect_refused("device: .* got cuda: this Quire was built without CUDA"
      ${tiny} --dummy --device cuda)
  endif()
endif()

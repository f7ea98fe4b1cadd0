# quire_cuda builds everything that nvcc compiles. Until there are kernels that is a check that the
# host/device headers are fit for a device.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 90a)
endif()
enable_language(CUDA)

# CMake 3.25 does not know that nvcc has C++20.
if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)

# --expt-relaxed-constexpr: device code calls constexpr functions of the standard library and the
# defaulted comparisons of our units.
target_compile_options(quire_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr -Werror=all-warnings>)

add_library(quire_device_headers OBJECT src/attn/device_headers_check.cu)
target_link_libraries(quire_device_headers PRIVATE quire_flags quire_attn)

add_custom_target(quire_cuda)
add_dependencies(quire_cuda quire_device_headers)

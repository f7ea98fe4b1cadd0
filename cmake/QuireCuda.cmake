# quire_cuda_library(FOLDER SOURCES...)   quire_<folder>_cuda, from the sources in src/<folder>/cuda;
#   links quire_<folder>, and the CUDA libraries of the folders that src/LAYERS allows folder/cuda
# quire_cuda_test(NAME SOURCES ... [LIBRARIES ...] [EMULATED filters ... [COST seconds]])   a GoogleTest
#   binary with the label cuda, linked with the CUDA library of the folder it stands in, if it has one; and
#   with QUIRE_EMULATED another one, with the label emulated, that runs the tests in EMULATED without a GPU
# quire_cuda_bench(NAME SOURCES ... [LIBRARIES ...])   a benchmark
#
# The target quire_cuda builds all of them, quire_cuda_tests and quire_cuda_benches those. Without
# QUIRE_CUDA there are none, and the functions do nothing.
if(QUIRE_CUDA)
  # The code for Hopper alone, without the intermediate form: sm_90a's runs on nothing else anyway.
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 90a-real)
  endif()
  enable_language(CUDA)
  find_package(CUDAToolkit 13.0 REQUIRED)

  # CMake 3.25 does not know that nvcc has C++20.
  if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)

  # --expt-relaxed-constexpr: device code calls constexpr functions of the standard library and the
  # defaulted comparisons of our units.
  # --fmad=false: as -ffp-contract=off on the host; two instances of a template must not round
  # differently because the compiler fused one of them. Where we want fmaf we write it.
  # -lineinfo: profilers and compute-sanitizer name lines; the code stays the same.
  target_compile_options(quire_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr --fmad=false -lineinfo>)
  if(QUIRE_QUICK_CUDA)
    target_compile_options(quire_flags INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-Ofc=max>)
  endif()
  # fmt 9 drops constexpr under nvcc, but not consteval, and then does not compile.
  target_compile_definitions(quire_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1>)

  # Compiled, never run: the host/device headers are fit for a device.
  add_library(quire_device_headers OBJECT src/attn/device_headers_check.cu)
  target_link_libraries(quire_device_headers PRIVATE quire_flags quire_attn)

  add_custom_target(quire_cuda)
  add_custom_target(quire_cuda_tests)
  add_custom_target(quire_cuda_benches)
  add_dependencies(quire_cuda quire_device_headers quire_cuda_tests quire_cuda_benches)
endif()

# The folders whose libraries src/<folder>/cuda may use: those of the line "folder/cuda:" of
# src/LAYERS, or of "folder:" where there is none.
function(quire_allowed_cuda_layers folder out)
  file(STRINGS "${PROJECT_SOURCE_DIR}/src/LAYERS" lines REGEX "^${folder}/cuda:")
  if(lines)
    set(folder ${folder}/cuda)
  endif()
  quire_allowed_layers(${folder} allowed)
  set(${out} "${allowed}" PARENT_SCOPE)
endfunction()

# One file NAME, like joined.cu, for the kernels of every folder: most of what nvcc takes for one is the
# headers that they share, which it reads three times.
function(quire_join_kernels out name)
  set(families "")
  foreach(kernel IN LISTS ARGN)
    cmake_path(GET kernel PARENT_PATH family)
    list(APPEND families ${family})
    string(APPEND joined_${family} "#include \"${CMAKE_CURRENT_SOURCE_DIR}/${kernel}\"\n")
  endforeach()
  list(REMOVE_DUPLICATES families)
  set(files "")
  foreach(family IN LISTS families)
    set(file ${CMAKE_CURRENT_BINARY_DIR}/${family}/${name})
    file(CONFIGURE OUTPUT ${file} CONTENT "${joined_${family}}" @ONLY)
    list(APPEND files ${file})
  endforeach()
  set(${out} "${files}" PARENT_SCOPE)
endfunction()

# SOURCES of target NAME for the emulated GPU (docs/emulated-gpu.md), where kernels are C++.
function(quire_emulate out name)
  set(kernels ${ARGN})
  list(FILTER kernels INCLUDE REGEX "\\.cu$")
  set(sources ${ARGN})
  list(FILTER sources EXCLUDE REGEX "\\.cu$")
  quire_join_kernels(kernels ${name}.cc ${kernels})
  # nvcc includes what it compiles kernels with by itself, has other warnings, and reads the same bytes as any type.
  set_source_files_properties(${kernels} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON COMPILE_OPTIONS
    "-include;cuda_runtime_api.h;-DQUIRE_ON_DEVICE;-Wno-unknown-pragmas;-Wno-sign-compare;-Wno-conversion;-Wno-shadow;-Wno-missing-field-initializers;-Wno-class-memaccess;-Wno-unused;-Wno-psabi;-fno-strict-aliasing")
  set(${out} ${sources} ${kernels} PARENT_SCOPE)
endfunction()

function(quire_emulated_library folder)
  if(NOT QUIRE_EMULATED)
    return()
  endif()
  set(name quire_${folder}_emulated)
  quire_emulate(sources ${name} ${ARGN})
  add_library(${name} STATIC EXCLUDE_FROM_ALL ${sources})
  target_include_directories(${name} BEFORE PUBLIC ${PROJECT_SOURCE_DIR}/src/testing/cuda/emulator/include)
  target_link_libraries(${name} PUBLIC quire_${folder} quire_emulator PRIVATE quire_flags)
  quire_allowed_cuda_layers(${folder} allowed)
  foreach(layer IN LISTS allowed)
    target_link_libraries(${name} PUBLIC quire_${layer})
    if(TARGET quire_${layer}_emulated)
      target_link_libraries(${name} PUBLIC quire_${layer}_emulated)
    endif()
  endforeach()
endfunction()

function(quire_cuda_library folder)
  quire_emulated_library(${folder} ${ARGN})
  if(NOT QUIRE_CUDA)
    return()
  endif()
  set(name quire_${folder}_cuda)
  set(kernels ${ARGN})
  list(FILTER kernels INCLUDE REGEX "\\.cu$")
  set(sources ${ARGN})
  if(QUIRE_QUICK_CUDA)
    list(FILTER sources EXCLUDE REGEX "\\.cu$")
    quire_join_kernels(kernels joined.cu ${kernels})
    list(APPEND sources ${kernels})
  endif()
  add_library(${name} STATIC ${sources})
  # Newer CMake would join these as it joins those of the host, whatever their names.
  set_source_files_properties(${kernels} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  set_target_properties(${name} PROPERTIES EXPORT_NAME ${folder}_cuda)
  target_link_libraries(${name} PUBLIC quire_${folder} CUDA::cudart_static
    PRIVATE $<BUILD_INTERFACE:quire_flags>)
  quire_allowed_cuda_layers(${folder} allowed)
  foreach(layer IN LISTS allowed)
    target_link_libraries(${name} PUBLIC quire_${layer})
    if(TARGET quire_${layer}_cuda)
      target_link_libraries(${name} PUBLIC quire_${layer}_cuda)
    endif()
  endforeach()
  add_dependencies(quire_cuda ${name})
endfunction()

# The test cuda_X_test of a folder as emulated_X_test, of which the tests in EMULATED run.
function(quire_emulated_test name)
  if(NOT QUIRE_EMULATED OR NOT QUIRE_TESTS OR NOT arg_EMULATED)
    return()
  endif()
  string(REPLACE "cuda_" "emulated_" name ${name})
  string(JOIN ":" filter ${arg_EMULATED})
  list(TRANSFORM arg_LIBRARIES REPLACE "_cuda$" "_emulated")
  quire_emulate(sources ${name} ${arg_SOURCES})
  quire_test(${name} COST "${arg_COST}" LABELS emulated SOURCES ${sources}
    LIBRARIES quire_${folder}_emulated ${arg_LIBRARIES})
  target_include_directories(${name} BEFORE PRIVATE ${PROJECT_SOURCE_DIR}/src/testing/cuda/emulator/include)
  set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT "GTEST_FILTER=${filter}")
  # One that is renamed would drop out of the filter silently.
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  add_test(NAME ${name}_names COMMAND Python3::Interpreter
    ${PROJECT_SOURCE_DIR}/tools/check_test_names.py $<TARGET_FILE:${name}> ${arg_EMULATED})
  set_tests_properties(${name}_names PROPERTIES LABELS "repo;emulated")
endfunction()

function(quire_cuda_test name)
  cmake_parse_arguments(arg "" "COST" "SOURCES;LIBRARIES;EMULATED" ${ARGN})
  cmake_path(GET CMAKE_CURRENT_SOURCE_DIR FILENAME folder)
  quire_emulated_test(${name})
  if(NOT QUIRE_CUDA OR NOT QUIRE_TESTS)
    return()
  endif()
  if(TARGET quire_${folder}_cuda)
    list(PREPEND arg_LIBRARIES quire_${folder}_cuda)
  endif()
  quire_test(${name} LABELS cuda SOURCES ${arg_SOURCES} LIBRARIES ${arg_LIBRARIES})
  set_target_properties(${name} PROPERTIES UNITY_BUILD "${QUIRE_UNITY_TESTS}")
  set_tests_properties(${name} PROPERTIES RESOURCE_LOCK cuda_device)  # one at a time on the device
  add_dependencies(quire_cuda_tests ${name})
endfunction()

function(quire_cuda_bench name)
  if(NOT QUIRE_CUDA)
    return()
  endif()
  cmake_parse_arguments(arg "" "" "SOURCES;LIBRARIES" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  set_target_properties(${name} PROPERTIES UNITY_BUILD "${QUIRE_UNITY_TESTS}")
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE quire_flags benchmark::benchmark ${arg_LIBRARIES})
  add_dependencies(quire_cuda_benches ${name})
endfunction()

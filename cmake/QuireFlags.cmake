# Flags every target of ours is built with. Third-party headers come in as system headers, so that
# our warnings can be errors.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 90a)
endif()

add_library(quire_flags INTERFACE)
# -ffp-contract=off: a result must not depend on which expressions a compiler chose to fuse; where
# we want a fused multiply-add we write one.
target_compile_options(quire_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Werror -Wshadow -Wconversion -Wno-sign-conversion
    -Wnon-virtual-dtor -Woverloaded-virtual -ffp-contract=off -fno-math-errno>)
# --expt-relaxed-constexpr: device code calls constexpr functions of the standard library and the
# defaulted comparisons of our units.
target_compile_options(quire_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr -Werror=all-warnings>)
if(QUIRE_SANITIZE)
  target_compile_options(quire_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${QUIRE_SANITIZE} -fno-sanitize-recover=all
      -fno-omit-frame-pointer>)
  target_link_options(quire_flags INTERFACE -fsanitize=${QUIRE_SANITIZE})
endif()

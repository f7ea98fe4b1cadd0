// Opening cuBLASLt, which needs no GPU.
#include "kernels/cuda/gemm/cublas_lt.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "testing/error_message.h"

namespace quire::cuda {
namespace {

using quire::testing::ErrorMessage;

TEST(CublasLtTest, TheOneOfThisMachineHasEveryFunction) {
  const CublasLt& calls = CublasLt::Get();
  EXPECT_STREQ(calls.status_name(CUBLAS_STATUS_SUCCESS), "CUBLAS_STATUS_SUCCESS");
  cublasLtMatmulDesc_t product = nullptr;
  ASSERT_EQ(calls.create_product(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(calls.destroy_product(product), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(&CublasLt::Get(), &calls);
}

TEST(CublasLtTest, WhereThereIsNoneTheErrorSaysWhatToDo) {
  const std::array<std::string, 2> places = {"no_such_library.so", "/no/such/folder/library.so"};
  const std::string message =
      ErrorMessage(ErrorCode::kInvalidArgument, [&] { CublasLt::Open(places); });
  EXPECT_EQ(message.find(fmt::format(
                "cuBLASLt: expected no_such_library.so, which comes with CUDA {}'s libcublas "
                "(without it --deterministic multiplies, and a GPU's roofs are not measured), got: "
                "no_such_library.so: ",
                CUBLAS_VER_MAJOR)),
            0u)
      << message;
  EXPECT_NE(message.find("; /no/such/folder/library.so: "), std::string::npos) << message;
}

TEST(CublasLtTest, AnotherPlaceIsLookedAtAndALibraryWithoutItsFunctionsIsRefused) {
  const std::array<std::string, 2> places = {"no_such_library.so", "libm.so.6"};
  EXPECT_EQ(ErrorMessage(ErrorCode::kInvalidArgument, [&] { CublasLt::Open(places); }),
            "cuBLASLt: expected libm.so.6 to have cublasLtCreate, got none");
}

}  // namespace
}  // namespace quire::cuda

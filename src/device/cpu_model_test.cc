#include "device/cpu_model.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(CpuModelTest, IsOneLineAndNotEmpty) {
  EXPECT_NE(CpuModel(), "");
  EXPECT_EQ(CpuModel().find('\n'), std::string::npos);
}

}  // namespace
}  // namespace quire

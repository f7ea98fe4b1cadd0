// The main of every test binary. It alone reads QUIRE_REVERT, the number of a fault to put back, and
// QUIRE_TEST_PARTS: of each property, one in so many of its cases runs, and at least one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "testing/active_faults.h"

namespace {

// The cases that do not run, in the order of the tests. A property that has a case for each of many models
// begins at another than the one before it, so that all of them together meet the models.
std::vector<std::string> CasesLeftOut(int parts) {
  std::vector<std::string> names;
  const ::testing::UnitTest& tests = *::testing::UnitTest::GetInstance();
  int num_properties = 0;
  for (int i = 0; i < tests.total_test_suite_count(); ++i) {
    const ::testing::TestSuite& suite = *tests.GetTestSuite(i);
    for (int begin = 0; begin < suite.total_test_count();) {
      // Google Test puts the cases of a property, "Property/case", behind one another.
      const auto property = [&suite](int test) {
        const ::testing::TestInfo& info = *suite.GetTestInfo(test);
        const std::string_view name = info.name();
        return info.value_param() == nullptr ? name : name.substr(0, name.find('/'));
      };
      int end = begin + 1;
      while (end < suite.total_test_count() && property(end) == property(begin)) ++end;
      const int step = std::min(parts, end - begin);
      for (int test = begin; test < end; ++test) {
        if ((test - begin) % step == num_properties % step) continue;
        names.push_back(std::string(suite.name()) + "." + suite.GetTestInfo(test)->name());
      }
      ++num_properties;
      begin = end;
    }
  }
  return names;
}

void LeaveCasesOut(int parts) {
  const std::vector<std::string> names = CasesLeftOut(parts);
  std::string filter = GTEST_FLAG_GET(filter);
  char separator = filter.find('-') == std::string::npos ? '-' : ':';
  for (const std::string& name : names) {
    filter += separator + name;
    separator = ':';
  }
  GTEST_FLAG_SET(filter, filter);
  std::cout << "QUIRE_TEST_PARTS=" << parts << ": " << names.size() << " cases are left out\n";
}

// What ctest takes for "skipped": quire_test says so.
constexpr int kSkipped = 77;

// Every test that was to run was skipped, by itself or with all others.
bool NothingRan() {
  const ::testing::UnitTest& tests = *::testing::UnitTest::GetInstance();
  return tests.test_to_run_count() > 0 && tests.successful_test_count() == 0 &&
         !GTEST_FLAG_GET(list_tests);
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (const char* number = std::getenv("QUIRE_REVERT")) {
    if (!quire::testing::PutBackFault(number)) return 2;
  }
  if (const char* parts = std::getenv("QUIRE_TEST_PARTS")) {
    const int number = std::atoi(parts);
    if (number < 1) {
      std::cerr << "QUIRE_TEST_PARTS is not a number from 1 on: " << parts << "\n";
      return 2;
    }
    LeaveCasesOut(number);
  }
  const int failed = RUN_ALL_TESTS();
  return failed == 0 && NothingRan() ? kSkipped : failed;
}

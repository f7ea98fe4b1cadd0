// What a refused call says.
#ifndef QUIRE_TESTING_ERROR_MESSAGE_H_
#define QUIRE_TESTING_ERROR_MESSAGE_H_

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace quire::testing {

// The message of the Error that fn throws, or "no error".
template <class Fn>
std::string ErrorMessage(Fn fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// The same of a call that must throw an Error of this code: the test fails if it does not.
template <class Fn>
std::string ErrorMessage(ErrorCode code, Fn fn) {
  try {
    fn();
  } catch (const Error& error) {
    EXPECT_STREQ(ErrorCodeName(error.code()), ErrorCodeName(code)) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "expected an Error(" << ErrorCodeName(code) << ")";
  return "no error";
}

}  // namespace quire::testing

#endif  // QUIRE_TESTING_ERROR_MESSAGE_H_

// What the tests of this folder share: the folders of small models.
#ifndef QUIRE_RUNNER_TEST_MODELS_H_
#define QUIRE_RUNNER_TEST_MODELS_H_

#include <filesystem>

namespace quire {

inline const std::filesystem::path kTrueGeometry =
    std::filesystem::path(QUIRE_RUNNER_TESTDATA) / "dummy" / "true_geometry";

}  // namespace quire

#endif  // QUIRE_RUNNER_TEST_MODELS_H_

// What the tests of this folder share: the folders of small models.
#ifndef QUIRE_RUNNER_TEST_MODELS_H_
#define QUIRE_RUNNER_TEST_MODELS_H_

#include <filesystem>

namespace quire {

inline const std::filesystem::path kTrueGeometry =
    std::filesystem::path(QUIRE_RUNNER_TESTDATA) / "dummy" / "true_geometry";
// Three layers, of which the second takes the choice of the first: 40 keys.
inline const std::filesystem::path kSparse =
    std::filesystem::path(QUIRE_RUNNER_TESTDATA) / "dummy" / "sparse";

}  // namespace quire

#endif  // QUIRE_RUNNER_TEST_MODELS_H_

// How this program was built: the only place that looks at the macros of libraries and compilers.
#include <fmt/format.h>
#include <hwy/highway.h>
#include <openssl/crypto.h>
#include <boost/version.hpp>

#include <CLI/Version.hpp>
#include <nlohmann/json.hpp>

#include "cli/doctor/machine_report.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace quire::cli {
namespace {

// The one library here that is both linked when the program starts and updated often.
std::string OpenSslVersion() {
  const std::string running = OpenSSL_version(OPENSSL_VERSION_STRING);
  if (running == OPENSSL_VERSION_STR) return running;
  return fmt::format("{} (built with {})", running, OPENSSL_VERSION_STR);
}

}  // namespace

NamedTexts LibraryVersions() {
  return {{"Boost", fmt::format("{}.{}.{}", BOOST_VERSION / 100000, BOOST_VERSION / 100 % 1000,
                                BOOST_VERSION % 100)},
          {"CLI11", CLI11_VERSION},
          {"fmt", fmt::format("{}.{}.{}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100,
                              FMT_VERSION % 100)},
          {"Highway", fmt::format("{}.{}.{}", HWY_MAJOR, HWY_MINOR, HWY_PATCH)},
          {"nlohmann/json", fmt::format("{}.{}.{}", NLOHMANN_JSON_VERSION_MAJOR,
                                        NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH)},
          {"OpenSSL", OpenSslVersion()},
          {"PCRE2", fmt::format("{}.{}", PCRE2_MAJOR, PCRE2_MINOR)}};
}

BuildReport ThisBuild() {
  BuildReport build;
#ifdef __clang__
  build.compiler = "clang " __clang_version__;
#else
  build.compiler = "gcc " __VERSION__;
#endif
  build.type = QUIRE_BUILD_TYPE;
  build.sanitizers = QUIRE_SANITIZERS;
#ifdef QUIRE_DCHECKS
  build.inner_checks = true;
#endif
#ifdef QUIRE_FAULTS
  build.faults = true;
#endif
  return build;
}

}  // namespace quire::cli

#include "text/normalizer.h"

#include <optional>

#include "base/error.h"

namespace quire {
namespace {

void RequireAtMost(size_t num_bytes, size_t max_bytes) {
  if (num_bytes <= max_bytes) return;
  throw Error(ErrorCode::kCapacityExceeded,
              "a tokenizer's replacements make a text longer than {} bytes", max_bytes);
}

std::string Apply(const PrependStep& step, std::string_view text, size_t max_bytes) {
  RequireAtMost(step.text.size() + text.size(), max_bytes);
  return text.empty() ? std::string() : step.text + std::string(text);
}

std::string Apply(const ReplaceStep& step, std::string_view text, size_t max_bytes) {
  return Replace(step, text, max_bytes);
}

}  // namespace

std::string Replace(const ReplaceStep& step, std::string_view text, size_t max_bytes) {
  std::string out;
  RegexScan scan(step.pattern);
  scan.Start(text);
  size_t done = 0;
  while (const std::optional<TextSpan> match = scan.Next()) {
    out += text.substr(done, match->begin - done);
    out += step.content;
    RequireAtMost(out.size(), max_bytes);
    done = match->end;
  }
  out += text.substr(done);
  return out;
}

std::string Normalizer::Normalize(std::string_view text) const {
  const size_t max_bytes = MaxReplacedBytes(text.size());
  std::string out(text);
  for (const Step& step : steps_) {
    out = std::visit([&](const auto& known) { return Apply(known, out, max_bytes); }, step);
  }
  return out;
}

}  // namespace quire

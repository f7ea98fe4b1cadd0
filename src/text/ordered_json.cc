#include "text/ordered_json.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace quire {
namespace {

// Builds the value from the parser's events. The text has been parsed once before, so its keys are
// known to be different, and a key is appended without the search through the others that the
// library would do for each.
class Builder final : public nlohmann::json_sax<OrderedJson> {
 public:
  OrderedJson Take() { return std::move(root_); }

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(int64_t value) override { return Add(value); }
  bool number_unsigned(uint64_t value) override { return Add(value); }
  bool number_float(double value, const std::string&) override { return Add(value); }
  bool string(std::string& value) override { return Add(std::move(value)); }
  bool binary(OrderedJson::binary_t&) override { return false; }  // not in text

  bool start_object(size_t) override { return Open(OrderedJson::object()); }
  bool end_object() override { return Close(); }
  bool start_array(size_t) override { return Open(OrderedJson::array()); }
  bool end_array() override { return Close(); }

  bool key(std::string& key) override {
    using Members = OrderedJson::object_t::Container;
    auto& members = static_cast<Members&>(open_.back()->get_ref<OrderedJson::object_t&>());
    member_ = &members.emplace_back(key, nullptr).second;
    return true;
  }

  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  OrderedJson* Put(OrderedJson value) {
    if (open_.empty()) return &(root_ = std::move(value));
    if (open_.back()->is_object()) return &(*member_ = std::move(value));
    open_.back()->push_back(std::move(value));
    return &open_.back()->back();
  }
  bool Add(OrderedJson value) {
    Put(std::move(value));
    return true;
  }
  bool Open(OrderedJson container) {
    open_.push_back(Put(std::move(container)));
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }

  OrderedJson root_;
  std::vector<OrderedJson*> open_;  // the containers around the next value, outermost first
  OrderedJson* member_ = nullptr;   // the value of the last key
};

}  // namespace

OrderedJson ParseOrderedJson(std::string_view text, std::string_view source,
                             const JsonLimits& limits) {
  (void)ParseJson(text, source, limits);
  Builder builder;
  OrderedJson::sax_parse(text.begin(), text.end(), &builder);
  return builder.Take();
}

std::string Dump(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace quire

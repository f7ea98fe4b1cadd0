#include "serve/constraint_fields.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "io/json.h"

namespace quire {
namespace {

using Kind = TextConstraint::Kind;

constexpr size_t kMaxConstraintBytes = size_t{1} << 18;
constexpr size_t kMaxChoices = 10'000;

// Where a field says what its constraint is.
struct ConstraintField {
  const char* name;
  Kind kind;
};
constexpr ConstraintField kGuided[] = {{"guided_json", Kind::kJsonSchema},
                                       {"guided_regex", Kind::kRegex},
                                       {"guided_choice", Kind::kChoice},
                                       {"guided_grammar", Kind::kEbnf}};
constexpr ConstraintField kStructured[] = {{"json", Kind::kJsonSchema},
                                           {"regex", Kind::kRegex},
                                           {"choice", Kind::kChoice},
                                           {"grammar", Kind::kEbnf},
                                           {"json_object", Kind::kJsonObject}};
constexpr ConstraintField kSampling[] = {
    {"json_schema", Kind::kJsonSchema}, {"regex", Kind::kRegex}, {"ebnf", Kind::kEbnf}};

// One at most.
class Constraints {
 public:
  void Add(const RequestField& field, TextConstraint constraint) {
    if (found_) {
      throw BadField(field.path(), fmt::format("{}: expected one constraint, got {} too",
                                               field.path(), found_->source));
    }
    constraint.source = field.path();
    found_ = std::move(constraint);
  }
  std::optional<TextConstraint> Take() { return std::move(found_); }

 private:
  std::optional<TextConstraint> found_;
};

std::string ReadSchema(const RequestField& field) {
  if (field.value().is_string()) return field.String(1, kMaxConstraintBytes);
  if (!field.value().is_object() && !field.value().is_boolean()) {
    field.Refuse("a JSON Schema, or the text of one");
  }
  std::string text = Dump(field.value());
  if (text.size() > kMaxConstraintBytes) {
    throw BadField(field.path(), fmt::format("{}: expected at most {} bytes, got {}", field.path(),
                                             kMaxConstraintBytes, text.size()));
  }
  return text;
}

std::vector<std::string> ReadChoices(const RequestField& field) {
  if (!field.value().is_array() || field.value().empty() || field.value().size() > kMaxChoices) {
    field.Refuse(fmt::format("an array of 1..{} strings", kMaxChoices));
  }
  std::vector<std::string> choices;
  for (const RequestField& choice : field.Array()) {
    choices.push_back(choice.String(1, kMaxConstraintBytes));
  }
  return choices;
}

void ReadFields(RequestFields& fields, std::span<const ConstraintField> known, Constraints& out) {
  for (const ConstraintField& one : known) {
    const std::optional<RequestField> field = fields.Find(one.name);
    if (!field) continue;
    switch (one.kind) {
      case Kind::kJsonSchema:
        out.Add(*field, {.kind = one.kind, .texts = {ReadSchema(*field)}});
        break;
      case Kind::kChoice:
        out.Add(*field, {.kind = one.kind, .texts = ReadChoices(*field)});
        break;
      case Kind::kJsonObject:
        if (field->Bool()) out.Add(*field, {.kind = one.kind});
        break;
      case Kind::kRegex:
      case Kind::kEbnf:
        out.Add(*field, {.kind = one.kind, .texts = {field->String(1, kMaxConstraintBytes)}});
        break;
    }
  }
}

// A schema, and what OpenAI has beside it.
void ReadNamedSchema(RequestFields& named, Constraints& out) {
  const RequestField schema = named.At("schema");
  out.Add(schema, {.kind = Kind::kJsonSchema, .texts = {ReadSchema(schema)}});
  for (const char* name : {"name", "description"}) {
    if (const auto text = named.Find(name)) (void)text->String();
  }
  (void)named.Bool("strict", true);
}

enum class SchemaPlace { kBesideType, kInJsonSchema };

void ReadResponseFormat(const RequestField& field, SchemaPlace place, Constraints& out) {
  RequestFields format = field.Object();
  const RequestField type = format.At("type");
  if (type.value() == "json_object") {
    out.Add(field, {.kind = Kind::kJsonObject});
  } else if (type.value() == "json_schema" && place == SchemaPlace::kBesideType) {
    ReadNamedSchema(format, out);
  } else if (type.value() == "json_schema") {
    RequestFields json_schema = format.At("json_schema").Object();
    ReadNamedSchema(json_schema, out);
    json_schema.RefuseUnknown();
  } else if (type.value() != "text") {
    type.Refuse("\"text\", \"json_object\" or \"json_schema\"");
  }
  format.RefuseUnknown();
}

OrderedJson SchemaOf(Kind kind) {
  const OrderedJson text = {{"type", "string"}, {"minLength", 1}};
  switch (kind) {
    case Kind::kJsonSchema:
      return {{"anyOf", {text, {{"type", {"object", "boolean"}}}}}};
    case Kind::kChoice:
      return {{"type", "array"}, {"items", text}, {"minItems", 1}, {"maxItems", kMaxChoices}};
    case Kind::kJsonObject:
      return {{"type", "boolean"}};
    case Kind::kRegex:
    case Kind::kEbnf:
      break;
  }
  return text;
}

OrderedJson SchemasOf(std::span<const ConstraintField> fields) {
  OrderedJson schemas = OrderedJson::object();
  for (const ConstraintField& field : fields) schemas[field.name] = SchemaOf(field.kind);
  return schemas;
}

// vLLM's.
void ReadStructured(RequestFields& body, Constraints& found) {
  if (const auto structured = body.Find("structured_outputs")) {
    RequestFields fields = structured->Object();
    ReadFields(fields, kStructured, found);
    fields.RefuseUnknown();
  }
  ReadFields(body, kGuided, found);
}

}  // namespace

std::optional<TextConstraint> ReadConstraint(RequestFields& body) {
  Constraints found;
  if (const auto format = body.Find("response_format")) {
    ReadResponseFormat(*format, SchemaPlace::kInJsonSchema, found);
  }
  ReadStructured(body, found);
  return found.Take();
}

std::optional<TextConstraint> ReadSamplingConstraint(RequestFields& params) {
  Constraints found;
  ReadFields(params, kSampling, found);
  return found.Take();
}

std::optional<TextConstraint> ReadTextConstraint(const std::optional<RequestField>& format,
                                                 RequestFields& body) {
  Constraints found;
  if (format) ReadResponseFormat(*format, SchemaPlace::kBesideType, found);
  ReadStructured(body, found);
  return found.Take();
}

std::optional<TextConstraint> ReadOutputConstraint(const std::optional<RequestField>& format,
                                                   RequestFields& body) {
  Constraints found;
  if (format) {
    RequestFields fields = format->Object();
    const RequestField type = fields.At("type");
    if (type.value() != "json_schema") type.Refuse("\"json_schema\"");
    const RequestField schema = fields.At("schema");
    found.Add(schema, {.kind = Kind::kJsonSchema, .texts = {ReadSchema(schema)}});
    fields.RefuseUnknown();
  }
  ReadStructured(body, found);
  return found.Take();
}

namespace {

OrderedJson NamedSchemaSchema() {
  const OrderedJson text_or_null = {{"type", {"string", "null"}}};
  return {{"type", "object"},
          {"properties",
           {{"name", text_or_null},
            {"description", text_or_null},
            {"strict", {{"type", {"boolean", "null"}}}},
            {"schema", SchemaOf(Kind::kJsonSchema)}}},
          {"required", {"schema"}},
          {"additionalProperties", false}};
}

OrderedJson FormatSchema(OrderedJson with_schema) {
  OrderedJson forms = OrderedJson::array();
  for (const char* type : {"text", "json_object"}) {
    forms.push_back({{"type", "object"},
                     {"properties", {{"type", {{"const", type}}}}},
                     {"required", {"type"}},
                     {"additionalProperties", false}});
  }
  forms.push_back(std::move(with_schema));
  return {{"anyOf", std::move(forms)}};
}

}  // namespace

OrderedJson StructuredSchemas() {
  OrderedJson schemas = SchemasOf(kGuided);
  schemas["structured_outputs"] = {
      {"type", "object"}, {"properties", SchemasOf(kStructured)}, {"additionalProperties", false}};
  return schemas;
}

OrderedJson ConstraintSchemas() {
  OrderedJson schemas = StructuredSchemas();
  schemas["response_format"] = FormatSchema(
      {{"type", "object"},
       {"properties", {{"type", {{"const", "json_schema"}}}, {"json_schema", NamedSchemaSchema()}}},
       {"required", {"type", "json_schema"}},
       {"additionalProperties", false}});
  return schemas;
}

OrderedJson SamplingConstraintSchemas() { return SchemasOf(kSampling); }

OrderedJson TextFormatSchema() {
  OrderedJson with_schema = NamedSchemaSchema();
  with_schema["properties"]["type"] = {{"const", "json_schema"}};
  with_schema["required"].push_back("type");
  return FormatSchema(std::move(with_schema));
}

OrderedJson OutputFormatSchema() {
  return {{"type", "object"},
          {"properties",
           {{"type", {{"const", "json_schema"}}}, {"schema", SchemaOf(Kind::kJsonSchema)}}},
          {"required", {"type", "schema"}},
          {"additionalProperties", false}};
}

}  // namespace quire

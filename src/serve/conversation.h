// The messages of a request, checked and made ready for a template.
#ifndef QUIRE_SERVE_CONVERSATION_H_
#define QUIRE_SERVE_CONVERSATION_H_

#include <nlohmann/json.hpp>

#include "io/json.h"
#include "serve/request_fields.h"
#include "text/chat_format.h"

namespace quire {

// At least one message {"role", "content", and "name" and "reasoning_content" if given}. Roles are
// system ("developer" becomes it), user, assistant, which may have "tool_calls" (ToolCallForTemplate), and
// tool, with a "tool_call_id". Every content is a text: parts {"type": "text"} are joined by a line feed,
// and an assistant's null is "".
struct Conversation {
  OrderedJson messages = OrderedJson::array();
  OrderedJson template_variables = OrderedJson::object();
  OrderedJson tools = OrderedJson::array();  // that the template is told of (ToolsForTemplate)
  bool add_generation_prompt = true;
  bool continue_final_message = false;  // which is an assistant's; without a generation prompt

  // For templates that want the arguments of "tool_calls" as objects. Throws ApiError where one is none.
  void MakeArgumentsObjects();
  // Borrows from this.
  ChatRequest ToChatRequest() const;
};

// chat_template_kwargs, {} if absent. Throws ApiError.
OrderedJson ReadTemplateVariables(RequestFields& body);

// Reads messages, chat_template_kwargs, add_generation_prompt and continue_final_message. Throws ApiError.
Conversation ReadConversation(RequestFields& body);
// JSON Schemas of these fields, by name.
OrderedJson ConversationSchemas(const RequestLimits& limits);

}  // namespace quire

#endif  // QUIRE_SERVE_CONVERSATION_H_

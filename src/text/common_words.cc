#include "text/common_words.h"

namespace quire {
namespace {

constexpr std::string_view kWords[] = {
    "the",   "of",    "and",   "to",    "in",    "is",    "that",  "for",   "it",   "as",
    "was",   "with",  "be",    "by",    "on",    "not",   "he",    "his",   "are",  "or",
    "at",    "from",  "this",  "an",    "had",   "which", "you",   "one",   "we",   "all",
    "her",   "she",   "there", "would", "their", "him",   "been",  "has",   "when", "who",
    "will",  "more",  "no",    "if",    "out",   "so",    "said",  "what",  "up",   "its",
    "about", "into",  "than",  "them",  "can",   "only",  "other", "new",   "some", "could",
    "time",  "these", "two",   "may",   "then",  "do",    "first", "any",   "my",   "now",
    "such",  "like",  "our",   "over",  "man",   "me",    "even",  "most",  "made", "after",
    "also",  "did",   "many",  "must",  "years", "back",  "way",   "well",  "down", "work",
    "know",  "good",  "house", "water", "line",  "place", "right", "world", "hand", "light",
};

}  // namespace

std::span<const std::string_view> CommonWords() { return kWords; }

}  // namespace quire

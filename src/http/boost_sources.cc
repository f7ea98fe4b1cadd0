// The parts of Asio and Beast that are not templates, compiled once for all that include them.
#include <boost/asio/impl/src.hpp>
#include <boost/asio/ssl/impl/src.hpp>
#include <boost/beast/src.hpp>

#include "http/test_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/system/system_error.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <stdexcept>

namespace quire::testing {

bool Eventually(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

namespace {

int Connected(int family, const sockaddr* address, socklen_t size) {
  const int fd = ::socket(family, SOCK_STREAM, 0);
  const timeval patience{kPatience.count(), 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  if (::connect(fd, address, size) == 0) return fd;
  ::close(fd);
  throw std::runtime_error("cannot connect");
}

int ConnectedTcp(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return Connected(AF_INET, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
}

int ConnectedUnix(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  return Connected(AF_UNIX, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
}

}  // namespace

RawClient::RawClient(int port) : fd_(ConnectedTcp(port)) {}
RawClient::RawClient(const std::string& unix_socket) : fd_(ConnectedUnix(unix_socket)) {}

void RawClient::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return;  // the server has closed: what it said is still to be read
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

bool RawClient::ReadSome() {
  char buffer[65536];
  const ssize_t n = ::recv(fd_, buffer, sizeof(buffer), 0);
  if (n > 0) {
    input_.append(buffer, static_cast<size_t>(n));
    return true;
  }
  end_ = n == 0 ? "" : errno == EAGAIN ? "(nothing)" : "(reset)";
  return false;
}

std::string RawClient::ReadUntil(std::string_view end) {
  while (input_.find(end) == std::string::npos) {
    if (!ReadSome()) return std::exchange(input_, {}) + end_;
  }
  const size_t size = input_.find(end) + end.size();
  const std::string result = input_.substr(0, size);
  input_.erase(0, size);
  return result;
}

std::string RawClient::ReadAll() {
  while (ReadSome()) {
  }
  return std::exchange(input_, {}) + end_;
}

std::string RawClient::ReadResponse() {
  std::string response = ReadUntil("\r\n\r\n");
  const size_t at = response.find("Content-Length: ");
  if (at == std::string::npos) return response;
  const size_t size = std::stoul(response.substr(at + 16));
  while (input_.size() < size && ReadSome()) {
  }
  response += input_.substr(0, size);
  input_.erase(0, size);
  return response;
}

void RawClient::HalfClose() { ::shutdown(fd_, SHUT_WR); }

void RawClient::Close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

void RawClient::Reset() {
  const linger at_once{1, 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  Close();
}

TestServer::TestServer(HttpServerOptions options) : released_(io_) {
  released_.expires_at(std::chrono::steady_clock::time_point::max());
  options.on_access = [this](const AccessRecord& record) {
    const std::lock_guard lock(mutex_);
    records_.push_back(record);
  };
  server_ = std::make_unique<HttpServer>(
      io_, std::move(options), [this](const HttpRequest& request, HttpResponder& responder) {
        return Handle(request, responder);
      });
  port_ = server_->port();
  const auto note_drained = [this]() -> asio::awaitable<void> {
    co_await server_->Drained();
    const std::lock_guard lock(mutex_);
    drained_ = true;
  };
  asio::co_spawn(io_, note_drained, asio::detached);
  thread_ = std::thread([this] { io_.run(); });
}

TestServer::~TestServer() {
  Do([this] { server_->CloseAll(); });
  EXPECT_TRUE(Eventually([this] { return drained(); }));
  io_.stop();
  thread_.join();
}

void TestServer::Do(const std::function<void()>& fn) {
  std::promise<void> done;
  asio::post(io_, [&] {
    fn();
    done.set_value();
  });
  done.get_future().wait();
}

void TestServer::Release() {
  Do([this] { released_.expires_at(std::chrono::steady_clock::time_point::min()); });
}

int TestServer::num_waiting() {
  const std::lock_guard lock(mutex_);
  return num_waiting_;
}

int TestServer::num_cancelled() {
  const std::lock_guard lock(mutex_);
  return num_cancelled_;
}

bool TestServer::drained() {
  const std::lock_guard lock(mutex_);
  return drained_;
}

std::vector<AccessRecord> TestServer::records() {
  const std::lock_guard lock(mutex_);
  return records_;
}

AccessRecord TestServer::record(size_t n) {
  EXPECT_TRUE(Eventually([&] { return records().size() > n; })) << "record " << n;
  const auto all = records();
  return n < all.size() ? all[n] : AccessRecord{};
}

// As a handler waits for the engine: each wait can be cancelled, and the last one succeeds.
asio::awaitable<void> TestServer::Wait() {
  const auto count = [this](int waiting, int cancelled) {
    const std::lock_guard lock(mutex_);
    num_waiting_ += waiting;
    num_cancelled_ += cancelled;
  };
  count(1, 0);
  try {
    while (released_.expiry() > std::chrono::steady_clock::now()) {
      asio::steady_timer poll(io_, std::chrono::milliseconds(1));
      co_await poll.async_wait(asio::use_awaitable);
    }
  } catch (const boost::system::system_error& error) {
    count(-1, error.code() == asio::error::operation_aborted ? 1 : 0);
    throw;
  }
  count(-1, 0);
}

asio::awaitable<void> TestServer::Handle(const HttpRequest& request, HttpResponder& responder) {
  responder.set_note("note");
  HttpResponse response;
  response.content_type = "text/plain";
  if (request.path == "/echo") {
    response.body = request.method + " " + request.path + "?" + request.query + " " + request.body;
    response.headers.Add("X-Kind", "echo");
    co_await responder.Send(std::move(response));
  } else if (request.path == "/wait") {
    co_await Wait();
    response.body = "released";
    co_await responder.Send(std::move(response));
  } else if (request.path == "/drop-wait") {
    responder.DropBody();
    co_await Wait();
    response.body = "released, " + std::to_string(request.body.size()) + " bytes";
    co_await responder.Send(std::move(response));
  } else if (request.path.starts_with("/stream")) {
    co_await responder.Start(200, "text/event-stream");
    co_await responder.Write("one");
    if (request.path == "/stream-wait") co_await Wait();
    co_await responder.Write("");
    co_await responder.Write("two");
    co_await responder.Write("three");
    co_await responder.Finish();
  } else if (request.path == "/flood") {
    const std::string piece(65536, 'x');
    co_await responder.Start(200, "text/plain");
    for (;;) co_await responder.Write(piece);
  } else {
    co_await Misbehave(request, responder);
  }
}

asio::awaitable<void> TestServer::Misbehave(const HttpRequest& request, HttpResponder& responder) {
  HttpResponse response;
  if (request.path == "/throw") throw std::runtime_error("secret");
  if (request.path == "/throw-late" || request.path == "/unfinished") {
    co_await responder.Start(200, "text/plain");
    co_await responder.Write("part");
    if (request.path == "/throw-late") throw std::runtime_error("secret");
  } else if (request.path == "/inject") {
    response.headers.Add("X-Id", "a\r\nX-Evil: b");
    co_await responder.Send(std::move(response));
  } else if (request.path == "/own-length") {
    response.headers.Add("content-length", "5");
    co_await responder.Send(std::move(response));
  } else if (request.path == "/twice") {
    co_await responder.Send(response);
    co_await responder.Send(response);
  }  // and "/silent"
}

TestCertificate MakeTestCertificate() {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* certificate = X509_new();
  X509_set_version(certificate, X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
  X509_set_pubkey(certificate, key);
  X509_NAME* name = X509_get_subject_name(certificate);
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const uint8_t*>("quire"),
                             -1, -1, 0);
  X509_set_issuer_name(certificate, name);
  X509_EXTENSION* alternative =
      X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, "IP:127.0.0.1");
  X509_add_ext(certificate, alternative, -1);
  X509_sign(certificate, key, EVP_sha256());

  const auto text = [](auto write) {
    BIO* bio = BIO_new(BIO_s_mem());
    write(bio);
    char* data = nullptr;
    const auto size = static_cast<size_t>(BIO_get_mem_data(bio, &data));
    std::string result(data, size);
    BIO_free(bio);
    return result;
  };
  TestCertificate result;
  result.certificate = text([&](BIO* bio) { PEM_write_bio_X509(bio, certificate); });
  result.key = text(
      [&](BIO* bio) { PEM_write_bio_PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr); });
  X509_EXTENSION_free(alternative);
  X509_free(certificate);
  EVP_PKEY_free(key);
  return result;
}

TestFolder::TestFolder()
    : path_((std::filesystem::temp_directory_path() / "quire_XXXXXX").string()) {
  if (::mkdtemp(path_.data()) == nullptr) throw std::runtime_error("cannot create " + path_);
}

TestFolder::~TestFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TestFolder::Write(const std::string& name, std::string_view contents) const {
  std::ofstream(Path(name), std::ios::binary) << contents;
  return Path(name);
}

}  // namespace quire::testing

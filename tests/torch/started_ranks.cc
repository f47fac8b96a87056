#include "torch/started_ranks.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <sstream>

namespace bottomless {
namespace {

std::FILE* start(const std::string& environment, const std::string& command) {
  const std::string fixed = "MKL_CBWR=COMPATIBLE OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo ";
  return popen(("timeout 300 env " + fixed + environment + " " + command + " 2>&1").c_str(), "r");
}

Ended finish(std::FILE* pipe) {
  Ended ended;
  char buffer[4096];
  while (const size_t got = std::fread(buffer, 1, sizeof buffer, pipe))
    ended.out.append(buffer, got);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) ended.code = WEXITSTATUS(status);
  return ended;
}

}  // namespace

std::vector<std::string> Ended::lines() const {
  std::vector<std::string> lines;
  std::istringstream text(out);
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

int free_port() {
  const int made = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const bool bound = bind(made, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
                     getsockname(made, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  close(made);
  return bound ? ntohs(address.sin_port) : 0;
}

Ended run_one(const std::string& command) { return finish(start("", command)); }

std::vector<Ended> run_ranks(int ranks, const std::string& command) {
  const std::string common = "WORLD_SIZE=" + std::to_string(ranks) +
                             " MASTER_ADDR=127.0.0.1 MASTER_PORT=" + std::to_string(free_port());
  std::vector<std::FILE*> pipes;
  for (int rank = 0; rank < ranks; ++rank)
    pipes.push_back(start(common + " RANK=" + std::to_string(rank), command));
  std::vector<Ended> ended;
  for (std::FILE* pipe : pipes) ended.push_back(finish(pipe));
  return ended;
}

}  // namespace bottomless

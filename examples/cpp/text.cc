#include "text.h"

#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

namespace example {

namespace fs = std::filesystem;

fs::path standard_library() {
  constexpr const char* kCommand =
      R"sh(python3 -c "import sysconfig; print(sysconfig.get_paths()['stdlib'])" 2>/dev/null)sh";
  struct Close {
    void operator()(FILE* pipe) const { pclose(pipe); }
  };
  std::unique_ptr<FILE, Close> pipe(popen(kCommand, "r"));
  std::string answer;
  for (int c; pipe && (c = std::fgetc(pipe.get())) != EOF && c != '\n';) {
    answer += static_cast<char>(c);
  }
  if (answer.empty()) {
    throw std::runtime_error(
        "find text to train on: python3 did not say where its standard library is; "
        "install python3 or name a directory with --text DIR");
  }
  return answer;
}

std::string read_text(const fs::path& directory, size_t limit_bytes) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const auto extension = entry->path().extension();
    const bool is_text = extension == ".py" || extension == ".txt" || extension == ".md";
    std::error_code unreadable;
    if (is_text && entry->is_regular_file(unreadable)) files.push_back(entry->path());
  }
  if (error) {
    throw std::runtime_error("read text from " + directory.string() + ": " + error.message() +
                             "; name another directory with --text DIR");
  }
  std::sort(files.begin(), files.end());

  std::string text;
  for (const auto& file : files) {
    if (text.size() >= limit_bytes) break;
    std::ifstream in(file, std::ios::binary);
    text.append(std::istreambuf_iterator<char>(in), {});
  }
  if (text.empty()) {
    throw std::runtime_error("read text from " + directory.string() +
                             ": no .py, .txt or .md file with content; name another directory "
                             "with --text DIR");
  }
  text.resize(std::min(text.size(), limit_bytes));
  return text;
}

Batches::Batches(std::string text, int64_t batch, int64_t context)
    : text_(std::move(text)), batch_(batch), context_(context) {
  if (std::cmp_less_equal(text_.size(), context_)) {
    throw std::runtime_error("cut text into windows of " + std::to_string(context_ + 1) +
                             " bytes: there are only " + std::to_string(text_.size()) +
                             "; choose a smaller --context or more text with --text DIR");
  }
}

Batch Batches::next() {
  const auto start_count = static_cast<int64_t>(text_.size()) - context_;
  const torch::Tensor starts = torch::randint(start_count, {batch_}, torch::kInt64);
  torch::Tensor windows = torch::empty({batch_, context_ + 1}, torch::kInt64);
  for (int64_t row = 0; row < batch_; ++row) {
    const auto first = text_.begin() + starts.const_data_ptr<int64_t>()[row];
    int64_t* out = windows.mutable_data_ptr<int64_t>() + row * (context_ + 1);
    std::transform(first, first + context_ + 1, out,
                   [](char c) { return static_cast<unsigned char>(c); });
  }
  return {windows.slice(1, 0, context_), windows.slice(1, 1, context_ + 1)};
}

}  // namespace example

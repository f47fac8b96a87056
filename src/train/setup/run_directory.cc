#include "train/setup/run_directory.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace bottomless::train {
namespace {

namespace fs = std::filesystem;

// What people keep text in; a directory may hold pictures and programs, too.
constexpr std::array<std::string_view, 12> kTextEndings = {
    ".txt", ".md", ".jsonl", ".py", ".cc", ".h", ".c", ".rst", ".html", ".tex", ".js", ".csv"};

bool is_text(const fs::path& file) {
  return std::find(kTextEndings.begin(), kTextEndings.end(), file.extension().string()) !=
         kTextEndings.end();
}

}  // namespace

fs::path model_in(const fs::path& directory) {
  const fs::path inside = RunDirectory{directory}.model();
  return !fs::exists(directory / "config.json") && fs::exists(inside / "config.json") ? inside
                                                                                      : directory;
}

Result<std::vector<fs::path>> data_files(const std::vector<fs::path>& named) {
  std::vector<fs::path> files;
  for (const fs::path& path : named) {
    std::error_code failed;
    if (!fs::is_directory(path, failed)) {
      if (!fs::exists(path, failed))
        return Error{Code::not_found, "read data '" + path.string() + "': there is no such file"};
      if (fs::is_regular_file(path, failed) && fs::file_size(path, failed) == 0)
        return Error{Code::invalid_argument,
                     "read data '" + path.string() + "': the file is empty; name one with text"};
      files.push_back(path);
      continue;
    }
    std::vector<fs::path> inside;
    const auto options = fs::directory_options::skip_permission_denied;
    for (const auto& entry : fs::recursive_directory_iterator(path, options, failed)) {
      if (entry.is_regular_file(failed) && is_text(entry.path()) && entry.file_size(failed) > 0)
        inside.push_back(entry.path());
    }
    if (inside.empty()) {
      return Error{Code::not_found, "read data '" + path.string() +
                                        "': no text file is in this directory; name files instead"};
    }
    std::sort(inside.begin(), inside.end());
    files.insert(files.end(), inside.begin(), inside.end());
  }
  return files;
}

}  // namespace bottomless::train

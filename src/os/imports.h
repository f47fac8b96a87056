// Puts our functions in the place of others that the libraries of this process import, such as
// read() of libc: the entry of each library's import table is overwritten, nothing else. Unlike
// preloading it works in a process that runs already and needs nothing of whoever started it.
// Calls inside one library, and system calls without a library, are not seen.
// Thread-safety: every member from any thread.
// Lifetime: what was redirected stays so; the replacements must live as long as the process.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mutex.h"

struct dl_phdr_info;

namespace bottomless {

struct Redirection {
  std::string_view name;
  const void* replacement;
};

class Imports {
 public:
  // The library that holds the first replacement keeps its own imports: it can call the originals.
  explicit Imports(std::vector<Redirection> redirections);

  // Redirects in every library that was loaded since the last call; quick when there is none.
  // Returns how many imports it changed. Does nothing while a Loading lives: the loader shows a
  // library before it has filled in its imports, and would spoil what was put there.
  size_t redirect();

  // While it lives, its thread loads a library.
  class Loading {
   public:
    explicit Loading(Imports& imports) : imports_(imports) { imports_.loading_.fetch_add(1); }
    ~Loading() { imports_.loading_.fetch_sub(1); }
    Loading(const Loading&) = delete;
    Loading& operator=(const Loading&) = delete;

   private:
    Imports& imports_;
  };
  bool loading() const { return loading_.load() > 0; }

 private:
  struct Visit;
  static int visit_object(dl_phdr_info* info, size_t bytes, void* visit);
  size_t redirect_in(const dl_phdr_info& info) BOTTOMLESS_REQUIRES(mutex_);

  const std::vector<Redirection> redirections_;
  // Asked under the loader's own lock, which is taken to show a library: whoever sees one sees that
  // it is being loaded.
  std::atomic<unsigned> loading_{0};
  Mutex mutex_;
  // By load address and dynamic section.
  std::set<std::pair<uintptr_t, const void*>> done_ BOTTOMLESS_GUARDED_BY(mutex_);
  // As counted by the loader.
  unsigned long long loads_ BOTTOMLESS_GUARDED_BY(mutex_) = 0;
  unsigned long long unloads_ BOTTOMLESS_GUARDED_BY(mutex_) = 0;
};

}  // namespace bottomless

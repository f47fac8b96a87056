#include "os/imports.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>

namespace bottomless {
namespace {

constexpr int kOurs = 4711;
int our_getpagesize() { return kOurs; }

std::vector<Redirection> ours() {
  return {{"getpagesize", reinterpret_cast<const void*>(&our_getpagesize)}};
}

struct Close {
  void operator()(void* library) const { dlclose(library); }
};
using Library = std::unique_ptr<void, Close>;

Library load(const std::string& name) {
  Library library(dlopen((IMPORTERS "/lib" + name + ".so").c_str(), RTLD_NOW | RTLD_LOCAL));
  EXPECT_NE(library, nullptr) << dlerror();
  return library;
}

int call(const Library& library, const char* function) {
  return reinterpret_cast<int (*)()>(dlsym(library.get(), function))();
}

class ImportsOf : public testing::TestWithParam<const char*> {};

TEST_P(ImportsOf, ALibraryAreRedirected) {
  const Library library = load(GetParam());
  EXPECT_NE(call(library, "seen_by_importer"), kOurs);
  Imports imports(ours());
  EXPECT_GT(imports.redirect(), 0u);
  EXPECT_EQ(call(library, "seen_by_importer"), kOurs);
  EXPECT_EQ(call(library, "seen_through_pointer"), kOurs);
}

TEST_P(ImportsOf, ALibraryLoadedLaterAreRedirectedByTheNextCall) {
  Imports imports(ours());
  imports.redirect();
  EXPECT_EQ(imports.redirect(), 0u);
  const Library library = load(GetParam());
  EXPECT_NE(call(library, "seen_by_importer"), kOurs);
  EXPECT_GT(imports.redirect(), 0u);
  EXPECT_EQ(call(library, "seen_by_importer"), kOurs);
}

TEST_P(ImportsOf, ALibraryThatTookThePlaceOfAnotherAreRedirected) {
  Imports imports(ours());
  for (int i = 0; i < 3; ++i) {
    const Library library = load(GetParam());
    EXPECT_GT(imports.redirect(), 0u) << i;
    EXPECT_EQ(call(library, "seen_by_importer"), kOurs) << i;
  }
}

// The loader shows a library before its imports are filled in.
TEST_P(ImportsOf, NoLibraryAreRedirectedWhileOneIsBeingLoaded) {
  Imports imports(ours());
  imports.redirect();
  Library library;
  {
    const Imports::Loading loading(imports);
    library = load(GetParam());
    EXPECT_TRUE(imports.loading());
    EXPECT_EQ(imports.redirect(), 0u);
    EXPECT_NE(call(library, "seen_by_importer"), kOurs);
  }
  EXPECT_FALSE(imports.loading());
  EXPECT_GT(imports.redirect(), 0u);
  EXPECT_EQ(call(library, "seen_by_importer"), kOurs);
}

// The import tables of one are writable, those of the other read-only once it is loaded.
INSTANTIATE_TEST_SUITE_P(Imports, ImportsOf, testing::Values("importer", "sealed_importer"),
                         [](const auto& info) { return std::string(info.param); });

TEST(Imports, TheLibraryThatHoldsTheReplacementsKeepsItsOwn) {
  Imports imports(ours());
  imports.redirect();
  EXPECT_NE(getpagesize(), kOurs);
}

}  // namespace
}  // namespace bottomless

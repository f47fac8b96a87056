#include "os/imports.h"

#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <span>

namespace bottomless {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kCallSlot = R_X86_64_JUMP_SLOT;
constexpr uint32_t kAddressSlot = R_X86_64_GLOB_DAT;
#elif defined(__aarch64__)
constexpr uint32_t kCallSlot = R_AARCH64_JUMP_SLOT;
constexpr uint32_t kAddressSlot = R_AARCH64_GLOB_DAT;
#else
#error "name the relocations of import tables on this architecture"
#endif

// The part of a library that becomes read-only once it is loaded; import tables lie there or not.
struct ReadOnly {
  uintptr_t from = 0;
  uintptr_t to = 0;
  bool holds(const void* address) const {
    const auto at = reinterpret_cast<uintptr_t>(address);
    return at >= from && at < to;
  }
};

void overwrite(const void** slot, const void* value, const ReadOnly& read_only) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  auto* from = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(slot) / page * page);
  const bool sealed = read_only.holds(slot);
  if (sealed && mprotect(from, page, PROT_READ | PROT_WRITE) != 0) return;
  // Other threads call through it meanwhile: they see the old or the new one.
  std::atomic_ref(*slot).store(value, std::memory_order_release);
  if (sealed) mprotect(from, page, PROT_READ);
}

struct Tables {
  const ElfW(Sym) * symbols = nullptr;
  const char* names = nullptr;
  std::span<const ElfW(Rela)> calls;
  std::span<const ElfW(Rela)> others;
};

Tables tables_of(const ElfW(Dyn) * dynamic, uintptr_t base) {
  Tables tables;
  const ElfW(Rela)* calls = nullptr;
  const ElfW(Rela)* others = nullptr;
  size_t call_bytes = 0;
  size_t other_bytes = 0;
  // The loader has turned offsets into addresses, but not in objects whose section is read-only.
  const auto address = [&](const ElfW(Dyn) & entry) {
    return entry.d_un.d_ptr < base ? entry.d_un.d_ptr + base : entry.d_un.d_ptr;
  };
  for (; dynamic->d_tag != DT_NULL; ++dynamic) {
    switch (dynamic->d_tag) {
      case DT_SYMTAB:
        tables.symbols = reinterpret_cast<const ElfW(Sym)*>(address(*dynamic));
        break;
      case DT_STRTAB:
        tables.names = reinterpret_cast<const char*>(address(*dynamic));
        break;
      case DT_JMPREL:
        calls = reinterpret_cast<const ElfW(Rela)*>(address(*dynamic));
        break;
      case DT_PLTRELSZ:
        call_bytes = dynamic->d_un.d_val;
        break;
      case DT_RELA:
        others = reinterpret_cast<const ElfW(Rela)*>(address(*dynamic));
        break;
      case DT_RELASZ:
        other_bytes = dynamic->d_un.d_val;
        break;
      default:
        break;
    }
  }
  if (calls != nullptr) tables.calls = {calls, call_bytes / sizeof *calls};
  if (others != nullptr) tables.others = {others, other_bytes / sizeof *others};
  return tables;
}

}  // namespace

struct Imports::Visit {
  Imports* imports;
  bool first = true;
  size_t changed = 0;
};

Imports::Imports(std::vector<Redirection> redirections)
    : redirections_([&] {
        std::sort(redirections.begin(), redirections.end(),
                  [](const Redirection& a, const Redirection& b) { return a.name < b.name; });
        return std::move(redirections);
      }()) {}

size_t Imports::redirect() {
  MutexLock lock(mutex_);
  Visit visit{this};
  dl_iterate_phdr(&visit_object, &visit);
  return visit.changed;
}

// Under the lock of redirect(), which the analysis cannot see through the loader.
int Imports::visit_object(dl_phdr_info* info, size_t, void* argument) BOTTOMLESS_NOT_ANALYSED {
  auto& visit = *static_cast<Visit*>(argument);
  Imports& imports = *visit.imports;
  if (std::exchange(visit.first, false)) {
    if (imports.loading()) return 1;
    if (info->dlpi_adds == imports.loads_ && info->dlpi_subs == imports.unloads_) return 1;
    // An address may belong to another library by now.
    if (info->dlpi_subs != imports.unloads_) imports.done_.clear();
    imports.loads_ = info->dlpi_adds;
    imports.unloads_ = info->dlpi_subs;
  }
  visit.changed += imports.redirect_in(*info);
  return 0;
}

size_t Imports::redirect_in(const dl_phdr_info& info) {
  const uintptr_t base = info.dlpi_addr;
  const ElfW(Dyn)* dynamic = nullptr;
  ReadOnly read_only;
  bool ours = false;
  for (const ElfW(Phdr) & header : std::span(info.dlpi_phdr, info.dlpi_phnum)) {
    const ReadOnly range{base + header.p_vaddr, base + header.p_vaddr + header.p_memsz};
    if (header.p_type == PT_DYNAMIC) dynamic = reinterpret_cast<const ElfW(Dyn)*>(range.from);
    if (header.p_type == PT_GNU_RELRO) read_only = range;
    if (header.p_type == PT_LOAD) ours = ours || range.holds(redirections_.front().replacement);
  }
  if (dynamic == nullptr || ours || !done_.emplace(base, dynamic).second) return 0;
  const Tables tables = tables_of(dynamic, base);
  if (tables.symbols == nullptr || tables.names == nullptr) return 0;

  size_t changed = 0;
  for (const auto relocations : {tables.calls, tables.others}) {
    for (const ElfW(Rela) & relocation : relocations) {
      const auto type = static_cast<uint32_t>(ELF64_R_TYPE(relocation.r_info));
      if (type != kCallSlot && type != kAddressSlot) continue;
      const ElfW(Sym)& symbol = tables.symbols[ELF64_R_SYM(relocation.r_info)];
      const std::string_view name = tables.names + symbol.st_name;
      const auto found = std::lower_bound(
          redirections_.begin(), redirections_.end(), name,
          [](const Redirection& redirection, std::string_view n) { return redirection.name < n; });
      if (found == redirections_.end() || found->name != name) continue;
      overwrite(reinterpret_cast<const void**>(base + relocation.r_offset), found->replacement,
                read_only);
      ++changed;
    }
  }
  return changed;
}

}  // namespace bottomless

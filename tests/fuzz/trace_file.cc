// A file that somebody gives to `bottomless plan`.
#include "report/trace_file.h"

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "report/explain.h"
#include "report/page.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const bottomless::Result<bottomless::StepRecord> record =
      bottomless::read_trace({reinterpret_cast<const char*>(data), size});
  if (!record.ok()) {
    BOTTOMLESS_CHECK(!record.error().message.empty(), "an error without a reason");
    return 0;
  }
  const bottomless::Explanation found = bottomless::explain(record.value());
  BOTTOMLESS_CHECK(!found.verdict.empty(), "nothing was said about a step");
  BOTTOMLESS_CHECK(bottomless::page_of(record.value(), found).ends_with("</html>\n"),
                   "the page has no end");
  return 0;
}

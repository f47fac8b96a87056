#include "plan/range_maximum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "support/random.h"

namespace bottomless {
namespace {

TEST(RangeMaximum, IsThatOfNumbersInARow) {
  Random random(31);
  BOTTOMLESS_TRACE_SEED(random);
  for (size_t size = 1; size <= 40; ++size) {
    RangeMaximum numbers(size);
    std::vector<int64_t> plain(size, 0);
    for (int i = 0; i < 200; ++i) {
      const size_t first = random.below(size + 1);
      const size_t end = random.between(first, size);
      const auto what = static_cast<int64_t>(random.below(2000)) - 1000;
      numbers.add(first, end, what);
      for (size_t at = first; at < end; ++at) plain[at] += what;
      const size_t from = random.below(size + 1);
      const size_t until = random.between(from, size);
      int64_t greatest = std::numeric_limits<int64_t>::min();
      for (size_t at = from; at < until; ++at) greatest = std::max(greatest, plain[at]);
      ASSERT_EQ(numbers.greatest(from, until), greatest) << from << ' ' << until << " of " << size;
      const size_t one = random.below(size);
      ASSERT_EQ(numbers.at(one), plain[one]);
    }
  }
}

}  // namespace
}  // namespace bottomless

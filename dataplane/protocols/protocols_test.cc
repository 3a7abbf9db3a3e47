// SPDX-License-Identifier: Apache-2.0
#include "protocols/protocols.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "index/race/layout.h"
#include "index/rcuckoo/layout.h"

namespace farpool::protocols {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Protocols, EachNumberHasOneWithANameOfItsOwn) {
  ASSERT_EQ(all().size(), layout::kShapeCount);
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < all().size(); ++i) {
    const auto number = static_cast<layout::Protocol>(i);
    EXPECT_EQ(of(number).number(), number);
    EXPECT_FALSE(of(number).name().empty());
    EXPECT_TRUE(names.insert(of(number).name()).second) << of(number).name();
  }
}

// What layout knows of a table is said a second time in the protocol's room.
TEST(Protocols, RowsAreAsLongAsTheirProtocolsMakeThem) {
  EXPECT_EQ(layout::shape_of(layout::Protocol::rcuckoo).row_trailer, rcuckoo::kRowTrailer);
  const layout::Shape& race = layout::shape_of(layout::Protocol::race);
  ASSERT_NE(race.fixed, nullptr);
  EXPECT_EQ(race.fixed->entries_per_row, race::kGroupSlots);
  EXPECT_EQ(race.fixed->entry_bytes * race.fixed->entries_per_row + race.row_trailer, race::kGroupBytes);
}

TEST(Protocols, AWireThatServesOneServesItsLongestVerbs) {
  for (const index::Protocol* protocol : all()) {
    const fabric::Caps caps{.max_chain = protocol->needs().chain,
                            .max_verb_bytes = protocol->needs().verb_bytes,
                            .calls_in_flight = protocol->needs().calls_in_flight,
                            .call_bytes = protocol->needs().call_bytes};
    EXPECT_TRUE(index::check_wire(protocol->name(), protocol->needs(), caps).ok());
    fabric::Caps less = caps;
    --less.max_verb_bytes;
    EXPECT_FALSE(index::check_wire(protocol->name(), protocol->needs(), less).ok());
  }
}

TEST(Protocols, ARefusalSaysAllThatAWireLacks) {
  const index::Needs needs{.chain = 8, .verb_bytes = 4096, .calls_in_flight = 2, .call_bytes = 256};
  const fabric::Caps caps{.max_chain = 4, .max_verb_bytes = 4096, .calls_in_flight = 0, .call_bytes = 512};
  const base::Status refused = index::check_wire("toy", needs, caps);
  EXPECT_EQ(refused.code(), base::Code::invalid_argument);
  // The operator looks for these words (operator/internal/plan/status.go).
  EXPECT_THAT(refused.message(), HasSubstr("this wire cannot serve the protocol toy"));
  EXPECT_THAT(refused.message(), HasSubstr("chains of at least 8 (it has 4)"));
  EXPECT_THAT(refused.message(), HasSubstr("CALLs for data in flight on a lane of at least 2 (it has none)"));
  EXPECT_THAT(refused.message(), Not(HasSubstr("bytes")));
}

}  // namespace
}  // namespace farpool::protocols

// SPDX-License-Identifier: Apache-2.0
// The shard map crosses languages: Go and C++ read the same golden bytes and write them back unchanged.
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "farpool/v1alpha1/session.pb.h"
#include "farpool/v1alpha1/shard_map.pb.h"

namespace farpool {
namespace {

namespace pb = ::google::protobuf;

std::string read_golden(const std::string& name) {
  std::ifstream file(std::string(FARPOOL_API_TESTDATA "/") + name, std::ios::binary);
  EXPECT_TRUE(file) << "api/testdata/" << name << " cannot be read: run the test from dataplane/proto";
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string emit(const pb::MessageLite& message) {
  std::string bytes;
  {
    pb::io::StringOutputStream stream(&bytes);
    pb::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    EXPECT_TRUE(message.SerializeToCodedStream(&coded));
  }
  return bytes;
}

TEST(ShardMap, GoldenBytesAreParsedAndEmittedUnchanged) {
  const std::string golden = read_golden("shard_map.bin");
  ASSERT_FALSE(golden.empty());
  v1alpha1::ShardMap map;
  ASSERT_TRUE(map.ParseFromString(golden));
  EXPECT_EQ(emit(map), golden);
}

TEST(ShardMap, GoldenBytesMeanWhatTheTextSays) {
  v1alpha1::ShardMap from_text, from_bytes;
  ASSERT_TRUE(pb::TextFormat::ParseFromString(read_golden("shard_map.textproto"), &from_text));
  ASSERT_TRUE(from_bytes.ParseFromString(read_golden("shard_map.bin")));
  EXPECT_TRUE(pb::util::MessageDifferencer::Equals(from_text, from_bytes));
  EXPECT_GT(from_bytes.nodes_size(), 0);
  EXPECT_EQ(from_bytes.directory_size(), 1 << from_bytes.directory_depth());
}

TEST(ShardMap, CutBytesAreRefusedOrShorter) {
  const std::string golden = read_golden("shard_map.bin");
  for (std::size_t length = 0; length < golden.size(); ++length) {
    v1alpha1::ShardMap map;
    if (map.ParseFromString(golden.substr(0, length))) {
      EXPECT_EQ(emit(map).size(), length);  // cut between fields
    }
  }
}

TEST(Session, FieldsSurviveTheWire) {
  v1alpha1::SessionReply reply, again;
  reply.set_code(v1alpha1::SessionReply::CODE_OK);
  auto* region = reply.mutable_grant()->add_regions();
  region->set_region(3);
  region->set_bytes(1ull << 40);
  region->set_key(~0ull);
  reply.mutable_grant()->add_lane_tokens(std::string(16, '\xff'));
  ASSERT_TRUE(again.ParseFromString(reply.SerializeAsString()));
  EXPECT_TRUE(pb::util::MessageDifferencer::Equals(reply, again));
}

}  // namespace
}  // namespace farpool

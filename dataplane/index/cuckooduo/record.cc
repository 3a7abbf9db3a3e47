// SPDX-License-Identifier: Apache-2.0
#include "index/cuckooduo/record.h"

#include "base/check.h"
#include "base/crc64.h"

namespace farpool::cuckooduo {

namespace {

constexpr std::size_t kChecked = 24;

std::uint64_t checksum(base::Bytes bytes, std::uint32_t number) {
  return base::crc64(bytes.first(kChecked), std::uint64_t{number} + 1);
}

}  // namespace

std::optional<Record> read_record(base::Bytes bytes, std::uint32_t number) {
  FARPOOL_CHECK(bytes.size() == Record::kBytes);
  const auto word = [bytes](std::size_t at) { return base::load<std::uint64_t>(bytes.data() + at); };
  const std::uint64_t ticket = word(0), what = word(16);
  if (ticket == 0 || word(24) != checksum(bytes, number) || RecordWhat::Zero::get(what) != 0) return std::nullopt;
  return Record{.ticket = ticket,
                .version = word(8),
                .pairs = RecordWhat::Pairs::get(what),
                .existed = RecordWhat::Existed::get(what) != 0,
                .done = word(Record::kDoneAt) == ticket};
}

void put_record(base::MutableBytes into, std::uint32_t number, const Record& record) {
  FARPOOL_CHECK(into.size() >= Record::kDoneAt && record.pairs <= RecordWhat::Pairs::kMax);
  base::store(into.data(), record.ticket);
  base::store(into.data() + 8, record.version);
  base::store(into.data() + 16,
              RecordWhat::Pairs::put(record.pairs) | RecordWhat::Existed::put(record.existed ? 1 : 0));
  base::store(into.data() + kChecked, checksum(into, number));
}

}  // namespace farpool::cuckooduo

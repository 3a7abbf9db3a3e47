// SPDX-License-Identifier: Apache-2.0
#include "fabric/verbs/regions.h"

#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "fabric/verbs/masked_cas.h"

namespace farpool::fabric::verbs {

using base::Result;
using base::Status;

Regions::Regions(std::shared_ptr<Device> device, std::function<void(const std::string&)> log)
    : device_(std::move(device)), log_(std::move(log)) {}

Status Regions::open() {
  if (domain_ != nullptr) return {};
  auto domain = make_protection_domain(*device_);
  if (!domain.ok()) return domain.status();
  domain_ = std::move(*domain);
  return {};
}

Status Regions::place_in_device(base::Bytes region) {
  if (Status status = open(); !status.ok()) return status;
  auto memory = DeviceMemory::make(domain_.get(), region);
  if (!memory.ok()) return memory.status();
  Exposed& exposed = exposed_[{region.data(), Access::write}];
  exposed = {.bytes = region.size(), .key = (*memory)->key(), .device_memory = std::move(*memory)};
  return {};
}

Result<Regions::Granted> Regions::grant(const RegionRight& right, const Random& random) {
  auto memory_window = make_window(right);
  const auto exposed = expose(right,
                              memory_window != nullptr ? Access::windows
                              : right.read_only        ? Access::read
                                                       : Access::write,
                              random);
  if (!exposed.ok()) return exposed.status();
  Granted granted{
      .place = {.region = right.id, .key = (*exposed)->key, .begin = (*exposed)->begin, .read_only = right.read_only}};
  if (memory_window != nullptr) {
    unsigned access = IBV_ACCESS_REMOTE_READ;
    if (!right.read_only) access |= IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    granted.place.key = ::ibv_inc_rkey(memory_window->rkey);  // what it will be bound under
    granted.window = {.memory_window = std::move(memory_window), .exposed = *exposed, .access = access};
  } else {
    granted.on_other_lanes = (*exposed)->device_memory == nullptr;
  }
  return granted;
}

ibv_send_wr Regions::Window::binding(std::uint32_t key) const {
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_BIND_MW;
  wr.bind_mw = {.mw = memory_window.get(),
                .rkey = key,
                .bind_info = {.mr = exposed->registration.get(),
                              .addr = exposed->begin,
                              .length = exposed->bytes,
                              .mw_access_flags = access}};
  return wr;
}

// Returns no window for a region in the device's own memory, which cannot have one, and with some devices for none.
Owned<ibv_mw, ibv_dealloc_mw> Regions::make_window(const RegionRight& right) {
  const auto placed = exposed_.find({right.base, Access::write});
  const bool in_device = placed != exposed_.end() && placed->second.device_memory != nullptr;
  const std::uint64_t largest = device_->largest_window();
  if (in_device || largest == 0) return nullptr;
  if (right.bytes > largest) {
    say_without_windows("binds memory windows of up to " + std::to_string(largest) + " bytes, and a region has " +
                        std::to_string(right.bytes));
    return nullptr;
  }
  Owned<ibv_mw, ibv_dealloc_mw> window(::ibv_alloc_mw(domain_.get(), IBV_MW_TYPE_2));
  if (window == nullptr) say_without_windows(std::string("has no more memory windows: ") + std::strerror(errno));
  return window;
}

void Regions::say_without_windows(const std::string& why) {
  if (std::exchange(said_without_windows_, true)) return;
  log_(device_->name() + " " + why + ": keys of regions are good on every lane of this memory node");
}

Result<const Regions::Exposed*> Regions::expose(const RegionRight& right, Access wanted, const Random& random) {
  auto [place, fresh] = exposed_.try_emplace({right.base, wanted});
  Exposed& exposed = place->second;
  if (!fresh && exposed.bytes == right.bytes) return &exposed;
  FARPOOL_CHECK(exposed.device_memory == nullptr);  // what lies there is the whole region
  exposed.bytes = right.bytes;
  int access = IBV_ACCESS_LOCAL_WRITE;
  if (wanted == Access::windows) access |= IBV_ACCESS_MW_BIND;
  if (wanted != Access::windows) access |= IBV_ACCESS_REMOTE_READ;
  if (wanted == Access::write) access |= IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  auto registration =
      register_memory_at_random(domain_.get(), right.base, right.bytes, access, random(), exposed.begin);
  if (!registration.ok()) {
    exposed_.erase(place);
    return registration.status();
  }
  exposed.registration = std::move(*registration);
  exposed.key = exposed.registration->rkey;
  return &exposed;
}

Result<Regions::TrialWord> Regions::make_trial_word(const Random& random) {
  TrialWord made{.word = std::make_unique<std::uint64_t>(MaskedCasTrial::kWord), .place = {.region = kTrialWord}};
  auto registration = register_memory_at_random(
      domain_.get(), made.word.get(), sizeof(std::uint64_t),
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC, random(),
      made.place.begin);
  if (!registration.ok()) return registration.status();
  made.registration = std::move(*registration);
  made.place.key = made.registration->rkey;
  return made;
}

std::uint64_t Regions::begin_of(const std::byte* region) const {
  for (const Access access : {Access::write, Access::windows}) {
    if (const auto place = exposed_.find({region, access}); place != exposed_.end()) return place->second.begin;
  }
  return 0;
}

}  // namespace farpool::fabric::verbs

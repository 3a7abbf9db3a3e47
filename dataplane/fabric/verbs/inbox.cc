// SPDX-License-Identifier: Apache-2.0
#include "fabric/verbs/inbox.h"

#include <sys/mman.h>

#include <cerrno>
#include <string>

#include "base/check.h"

namespace farpool::fabric::verbs {

using base::Result;
using base::Status;

void Unmap::operator()(std::byte* memory) const { ::munmap(memory, bytes); }

Inbox::Inbox(std::uint32_t lanes, std::size_t bytes) : lanes_(lanes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return;
  // A child of this process has no use for it, and must not make the device's pages copies.
  ::madvise(memory, bytes, MADV_DONTFORK);
  memory_ = {static_cast<std::byte*>(memory), Unmap{bytes}};
  std::byte* rooms = replies_at(lanes_);
  for (std::size_t i = 0; i < kRooms; ++i) rooms_.push_back(Room(rooms + i * kRoomBytes));
  for (Room& room : rooms_) free_.push_back(&room);
}

Result<std::unique_ptr<Inbox>> Inbox::make(const Device& device, ibv_pd* domain, std::uint32_t lanes) {
  const std::size_t bytes = 2 * kReceiveBytes * std::size_t{lanes} + kRooms * kRoomBytes;
  std::unique_ptr<Inbox> made(new Inbox(lanes, bytes));
  if (made->memory_ == nullptr) return failure("memory for CALLs", ENOMEM);
  auto registration = register_memory(domain, made->memory_.get(), bytes, IBV_ACCESS_LOCAL_WRITE);
  if (!registration.ok()) return registration.status();
  made->registration_ = std::move(*registration);
  ibv_srq_init_attr wanted{};
  wanted.attr = {.max_wr = lanes, .max_sge = 1, .srq_limit = 0};
  made->queue_.reset(::ibv_create_srq(domain, &wanted));
  if (made->queue_ == nullptr) {
    return failure(device.name() + ": a shared queue of " + std::to_string(lanes) + " receives", errno);
  }
  for (std::uint32_t receive = 0; receive < lanes; ++receive) {
    if (Status status = made->post(receive); !status.ok()) return status;
  }
  return made;
}

Status Inbox::post(std::uint32_t receive) {
  FARPOOL_CHECK(receive < lanes_);
  ibv_sge part{.addr = reinterpret_cast<std::uintptr_t>(receive_at(receive)),
               .length = static_cast<std::uint32_t>(kReceiveBytes),
               .lkey = key()};
  ibv_recv_wr wr{.wr_id = receive, .next = nullptr, .sg_list = &part, .num_sge = 1};
  ibv_recv_wr* bad = nullptr;
  if (const int error = ::ibv_post_srq_recv(queue_.get(), &wr, &bad)) {
    return failure(std::string(::ibv_get_device_name(queue_->context->device)) + ": a receive", error);
  }
  return {};
}

Inbox::Room* Inbox::take_room() {
  if (free_.empty()) return nullptr;
  Room* room = free_.back();
  free_.pop_back();
  return room;
}

}  // namespace farpool::fabric::verbs

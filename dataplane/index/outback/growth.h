// SPDX-License-Identifier: Apache-2.0
// Growth of an Outback table within its memory node (docs/adr/0034). When overflow lists fill, another locator is built
// of the table's keys, of as many buckets or of twice as many, while the table serves. Then it is published, and keys
// move to where it says. All of it happens in bounded steps, which the threads that execute CALLs take between them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "index/outback/build.h"
#include "index/outback/zone.h"

namespace farpool::outback {

// Says what is wrong with the bytes of a table's locator, or ok.
base::Status check_locator(const Cut& cut, const Stage& stage, base::Bytes place);

class Growth {
 public:
  // How growth gets the lock of a zone, and how the thread that has it gives it back.
  class Doors {
   public:
    virtual bool enter(std::uint64_t zone) = 0;
    virtual void leave(std::uint64_t zone) = 0;

   protected:
    ~Doors() = default;
  };
  using Zones = std::vector<std::unique_ptr<Zone>>;

  // The zones outlive it.
  Growth(const Ground& ground, std::atomic<std::uint64_t>& stage, const Zones& zones)
      : ground_(ground), stage_(stage), zones_(zones) {}

  // Takes a step. `paced`: for a change, which works the more the fuller overflow lists are. If another thread takes one
  // now, it leaves what a change has to do to the steps that follow. Needs no lock.
  void work(fabric::Hand hand, Doors& doors, bool paced);
  // Leaves a change's step to later ones. Any thread.
  void owe();
  // Says whether a locator is being built: the table will soon have another generation. Any thread.
  bool building() const { return building_.load(std::memory_order_acquire); }
  // Returns the size of the table's locator. Any thread.
  std::uint64_t locator_bytes() const { return locator_bytes_.load(std::memory_order_relaxed); }
  // Takes over the locator that the table has: before the first step.
  void begin_with(const LocatorHeader& header) { locator_bytes_.store(header.bytes(), std::memory_order_relaxed); }
  // Says whether a client may know this generation before the table's stage says it. Any thread.
  bool is_next(std::uint64_t generation) const {
    return building() && generation == next_.load(std::memory_order_relaxed);
  }

  struct Figures {
    std::uint64_t begun = 0, published = 0, ended = 0;
    std::uint64_t doubled = 0;  // of the published ones
  };
  // Returns what has happened so far in this process. Any thread.
  Figures figures() const {
    return {begun_.load(std::memory_order_relaxed), published_.load(std::memory_order_relaxed),
            ended_.load(std::memory_order_relaxed), doubled_.load(std::memory_order_relaxed)};
  }

 private:
  enum class Phase : std::uint8_t { rest, gather, build, write, publish, move };
  struct Load {
    std::uint64_t keys = 0, overflow = 0;
  };
  Load load() const;
  std::uint64_t units(bool paced) const;
  std::uint64_t take_owed();
  Stage stage() const { return Stage::of(stage_.load(std::memory_order_relaxed)).value(); }
  bool wanted(const Load& load, bool& doubled);
  bool begin(fabric::Hand hand);
  // Each takes a step of its phase. False: it cannot go on now, because a zone's lock is taken.
  bool gather(std::uint64_t& units, Doors& doors);
  bool build(std::uint64_t& units);
  bool write(std::uint64_t& units, fabric::Hand hand);
  bool publish(fabric::Hand hand);
  bool move(std::uint64_t& units, fabric::Hand hand, Doors& doors);
  base::MutableBytes place() const { return ground_.place(next_stage_.place); }

  const Ground& ground_;
  std::atomic<std::uint64_t>& stage_;
  const Zones& zones_;
  std::atomic<bool> busy_{false};
  std::atomic<std::uint64_t> owed_{0};  // buckets' worth of work that changes have left to the next steps
  std::atomic<bool> building_{false};
  std::atomic<std::uint64_t> next_{0};
  std::atomic<std::uint64_t> locator_bytes_{0};
  std::atomic<std::uint64_t> begun_{0}, published_{0}, ended_{0}, doubled_{0};

  // By the thread that is busy.
  Phase phase_ = Phase::rest;
  Stage next_stage_;
  LocatorShape shape_;
  std::uint64_t partition_ = 0;  // that is being built
  std::uint64_t bucket_ = 0;     // of its keys, which are being gathered
  std::uint64_t keys_ = 0, checksum_ = 0;
  std::vector<std::uint64_t> hashes_;
  std::unique_ptr<Builder> builder_;
  std::uint64_t zone_ = 0;  // whose keys are being moved
  std::uint64_t zones_done_ = 0;
  // Keys that the last locator has left in overflow: another one would do the same.
  std::uint64_t left_ = 0;
};

}  // namespace farpool::outback

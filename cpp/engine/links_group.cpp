// The part of Links that has to do with the multicast group: one socket to speak, and one for each other rank
// to hear it with. Every rank speaks to a port of its own, so that each has its own receive buffer here, and
// the kernel tells them apart.
#include <stdexcept>
#include <string>
#include <utility>

#include "engine/links.h"

namespace optireduce {

std::uint16_t Links::open_group(const std::string& address, int ttl) {
  if (!group_.empty()) throw std::logic_error("a group was opened before");
  group_address_ = {address, bind_address_, ttl};
  group_.resize(links_.size());
  group_[rank_] = make_link(UdpSocket::speaker(group_address_, options_.socket), rank_, true);
  return group_[rank_]->socket.port();
}

void Links::join_group(const std::vector<std::string>& addresses, const std::vector<std::uint16_t>& ports) {
  for (Rank peer = 0; peer < group_.size(); ++peer) {
    if (peer == rank_) continue;
    UdpSocket member = UdpSocket::member(group_address_, ports.at(peer), options_.socket);
    // The kernel then drops what others than this rank send to the group.
    member.connect(addresses.at(peer), ports.at(peer));
    group_[peer] = make_link(std::move(member), peer, true);
  }
}

/// A thread that waits may just have been told about one of these: they are closed, and stay where they are.
void Links::leave_group() {
  for (const auto& link : group_) {
    if (!link) continue;
    link->pending.clear();
    link->socket.close();
  }
}

}  // namespace optireduce

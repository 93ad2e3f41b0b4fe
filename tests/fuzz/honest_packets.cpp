// Writes inputs of fuzz_decode, one for each type of packet: after a change of the format mutations of the
// old corpus hardly ever pass for a packet.
//
//   fuzz_honest_packets FOLDER
#include <fstream>
#include <string>

#include "base/codec.h"
#include "seal.h"
#include "views/view_messages.h"

using namespace optireduce;

namespace {

constexpr Rank kRanks = 4;

fuzz::Bytes payload_of(PacketType type) {
  if (is_data(type)) return fuzz::Bytes(64, std::byte{0x3f});
  if (type == PacketType::Request) return to_bytes(RequestBody{7, PacketType::Decision, {{0, 3}, {2, 1}}});
  if (type == PacketType::Reject)
    return to_bytes(RejectBody{RejectReason::Mismatch, 2, 1, {64, DType::Float32}, {65, DType::Float16}});
  if (type == PacketType::View)
    return cut_view_message(encode({.body = Install{{View::initial(kRanks)}}}), 1, 1408).front();
  return {};
}

}  // namespace

int main(int, char** arguments) {
  for (PacketType type = PacketType::First; type <= PacketType::Last;
       type = static_cast<PacketType>(static_cast<unsigned>(type) + 1)) {
    const fuzz::Bytes payload = payload_of(type);
    Header header;
    header.type = type;
    header.sender = 1;
    header.descriptor = {64, DType::Float32, ReduceOp::Mean, true};
    header.length = static_cast<std::uint16_t>(payload.size());
    const fuzz::Bytes packet = fuzz::sealed(header, payload, fuzz::kSecret);
    const auto number = std::to_string(static_cast<unsigned>(type));
    std::ofstream file(std::string(arguments[1]) + "/honest-" + number, std::ios::binary);
    file << static_cast<char>(kRanks - 1) << '\0';  // as fuzz_decode reads them
    file.write(reinterpret_cast<const char*>(packet.data()), static_cast<std::streamsize>(packet.size()));
  }
  return 0;
}

-- Wireshark's eyes for CXL over Ethernet: what a frame of wire/PROTOCOL.md says, byte by byte, and how frames belong
-- together. Copy it into the folder of personal Lua plugins (`tshark -G folders` names it), or give it for once:
--
--     tshark -X lua_script:cxloe.lua -r capture.pcapng
--
-- How a frame passes: `dissector` finds where its body ends and how its trailer looks, then `follow` gives it a place in
-- its session when it is met first (full sequence number, checksum, which request it answers), and `show_*` fill the tree.
-- Whatever `follow` finds out is kept per frame in `records`, since Wireshark comes back to frames in any order.
--
-- The checksum covers the session's id and 64 bits of the sequence number (rule R11). Both are known if the capture has
-- the handshake; otherwise the checksum is left unverified, and full numbers count from the first one met.

local cxloe = Proto("cxloe", "CXL over Ethernet")

local HEADER = 11 -- the base header behind the EtherType, which is where this dissector begins
local ETHERNET = 14 -- addresses and EtherType, which the offsets of the protocol's description count too
local LINE = 64
local PAGE_LINES = 64
local ADDRESS = 6 -- of a line behind the first, in frames of many
local CRC_LEN, TAG_LEN, COUNTER_LEN = 4, 16, 6
-- The trailer of each integrity.
local TRAILERS = { [0] = CRC_LEN, [1] = TAG_LEN, [2] = TAG_LEN + COUNTER_LEN }
local BURST_READ = 0x03
local FEATURE_LONG_BURSTS = 4 -- a burst read takes a number for each answer that its lines need

-- Commands: name, class; the payload's bytes or its form; bytes of it that stay readable in a sealed frame. The class says
-- which counter a frame's number comes from and how it is answered. One of `many` stands for requests, or answers, of as many
-- numbers as it has lines.
-- The table of opcodes begins: `OPCODES=write cargo test -p cxloe-wire dissector` writes it anew.
local COMMANDS = {
    [0x01] = { "ReadReq", "request", payload = 0, clear = 0 },
    [0x02] = { "WriteReq", "request", payload = 64, clear = 0 },
    [0x03] = { "BurstReadReq", "request", payload = 1, clear = 1 },
    [0x04] = { "BurstWriteReq", "request", payload = "mask_lines", clear = 8 },
    [0x05] = { "MultiReadReq", "request", payload = "addresses", clear = 1, many = true },
    [0x06] = { "MultiWriteReq", "request", payload = "address_lines", clear = 1, many = true },
    [0x10] = { "Hello", "handshake", payload = 40, clear = 0 },
    [0x11] = { "Ping", "control", payload = 0, clear = 0, answer = 0x91 },
    [0x12] = { "Bye", "control", payload = 0, clear = 0, answer = 0x92 },
    [0x13] = { "Start", "control", payload = 0, clear = 0, answer = 0x93 },
    [0x70] = { "Echo", "echo", payload = 4, clear = 0 },
    [0x81] = { "ReadResp", "response", payload = 64, clear = 0 },
    [0x82] = { "WriteResp", "response", payload = 0, clear = 0 },
    [0x83] = { "SackNak", "sack", payload = 2, clear = 0 },
    [0x84] = { "SackNakAck", "sack", payload = 6, clear = 0 },
    [0x85] = { "Congestion", "control", payload = 18, clear = 0 },
    [0x86] = { "BurstReadResp", "response", payload = "lines", clear = 1 },
    [0x87] = { "Fault", "response", payload = 1, clear = 0 },
    [0x88] = { "MultiReadResp", "response", payload = "lines", clear = 1, many = true },
    [0x89] = { "MultiWriteResp", "response", payload = 1, clear = 1, many = true },
    [0x90] = { "HelloAck", "handshake", payload = 64, clear = 0 },
    [0x91] = { "Pong", "control", payload = 0, clear = 0, question = 0x11 },
    [0x92] = { "ByeAck", "control", payload = 0, clear = 0, question = 0x12 },
    [0x93] = { "StartAck", "control", payload = 0, clear = 0, question = 0x13 },
    [0xF0] = { "EchoReply", "echo", payload = 2, clear = 0 },
}
-- The table of opcodes ends.
-- Either end may ask whether the other is there, and say that it leaves.
local BOTH_WAYS = { [0x11] = true, [0x12] = true, [0x91] = true, [0x92] = true }

local names = {}
for code, command in pairs(COMMANDS) do
    names[code] = command[1]
end
local INTEGRITY = { [0] = "plain: CRC-32C", [1] = "AES-128-GCM-SIV", [2] = "AES-128-GCM" }
local HELLO_STATUS = {
    [0] = "the session may be started",
    [1] = "no version in common",
    [2] = "another agent with this MAC address is alive",
    [3] = "this CN is not allowed here",
    [4] = "no room for another session",
    [5] = "not the integrity configured here",
    [6] = "the memory node is about to stop",
    [7] = "the address is not that of the shard",
    [8] = "this CN has a key, and has to show it",
    [9] = "many handshakes: ask again with the cookie",
    [10] = "the key of this CN was taken back",
}
local FAULT_STATUS = {
    [1] = "NXM: nothing is mapped there",
    [2] = "denied",
    [3] = "poisoned: the memory has lost its content",
    [4] = "no resources",
    [5] = "malformed or unknown request",
}
local TRAILER_STATUS = { [0] = "bad", [1] = "good", [2] = "unverified" }
local BAD, GOOD, UNVERIFIED = 0, 1, 2

----------------------------------------------------------------------------------------------------------- fields

local F = {}
local function field(name, make, text, ...)
    F[name] = make("cxloe." .. name, text, ...)
end
local u8, u16, u32, u64 = ProtoField.uint8, ProtoField.uint16, ProtoField.uint32, ProtoField.uint64
field("command", u8, "Command", base.HEX, names)
field("seq", u16, "Sequence number (low 16 bits)", base.DEC)
field("stream", u8, "Stream", base.DEC)
field("tag", u8, "Tag", base.DEC)
field("address", u64, "CMem address", base.HEX)
field("line", ProtoField.bytes, "Line")
field("lines", u8, "Lines", base.DEC)
field("other_address", u64, "CMem address of another line", base.HEX)
field("mask", u64, "Mask of lines", base.HEX)
field("fault.status", u8, "Why", base.DEC, FAULT_STATUS)
field("sack.last_in_order", u16, "Nothing is missing up to", base.DEC)
field("sack.acked_seq", u16, "Write acknowledged: sequence number", base.DEC)
field("sack.acked_stream", u8, "Write acknowledged: stream", base.DEC)
field("sack.acked_tag", u8, "Write acknowledged: tag", base.DEC)
field("congestion.classes", u16, "Class-enable vector", base.HEX)
field("congestion.quanta", u16, "Pause in quanta of 512 bit times", base.DEC)
field("hello.version", u16, "Version wanted", base.DEC)
field("hello.integrity", u8, "Integrity wanted", base.DEC, INTEGRITY)
field("hello.streams", u8, "Streams wanted", base.DEC)
field("hello.features", u32, "Features", base.HEX)
field("hello.nonce", u64, "Nonce", base.HEX)
field("hello.instance", u64, "Instance of the agent", base.HEX)
field("hello.max_frame", u16, "Largest frame of the CN's link", base.DEC)
field("hello.shard", u8, "Shard of the CN", base.DEC)
field("hello.owner", ProtoField.ether, "CN that it is a shard of")
field("hello.reserved", ProtoField.bytes, "Reserved")
field("hello_ack.version_min", u16, "Oldest version spoken", base.DEC)
field("hello_ack.version_max", u16, "Newest version spoken", base.DEC)
field("hello_ack.status", u8, "Status", base.DEC, HELLO_STATUS)
field("hello_ack.integrity", u8, "Integrity", base.DEC, INTEGRITY)
field("hello_ack.window", u16, "Window", base.DEC)
field("hello_ack.hello_nonce", u64, "Nonce of the Hello", base.HEX)
field("hello_ack.session", u64, "Session id", base.HEX)
field("hello_ack.nonce", u64, "Nonce", base.HEX)
field("hello_ack.incarnation", u64, "Incarnation of the pool", base.HEX)
field("hello_ack.features", u32, "Features", base.HEX)
field("hello_ack.max_frame", u16, "Largest frame of the session", base.DEC)
field("hello_ack.streams", u8, "Streams granted", base.DEC)
field("hello_ack.reserved", ProtoField.bytes, "Reserved")
field("keyed.ephemeral", ProtoField.bytes, "Ephemeral public key")
field("keyed.static", ProtoField.bytes, "Public key of the CN, encrypted")
field("keyed.stamp", ProtoField.bytes, "Time stamp, encrypted")
field("keyed.tag", ProtoField.bytes, "Tag")
field("keyed.mac1", ProtoField.bytes, "mac1")
field("keyed.mac2", ProtoField.bytes, "mac2")
field("keyed.mac", ProtoField.bytes, "mac")
field("keyed.cookie", ProtoField.bytes, "Cookie, encrypted")
field("echo.reply_len", u16, "Length of each answer", base.DEC)
field("echo.reply_count", u16, "Answers", base.DEC)
field("echo.index", u16, "Which answer", base.DEC)
field("sealed", ProtoField.bytes, "Sealed payload (encrypted)")
field("unknown", ProtoField.bytes, "Content of unknown form")
field("trailer.crc", u32, "CRC-32C", base.HEX)
field("trailer.tag", ProtoField.bytes, "Tag")
field("trailer.counter", ProtoField.uint64, "Counter of sealed frames", base.DEC)
field("trailer.status", u8, "Trailer", base.DEC, TRAILER_STATUS)
field("padding", ProtoField.bytes, "Padding")
-- Found out rather than read.
field("direction", u8, "Direction", base.DEC, { [0] = "to the memory node", [1] = "to the compute node" })
field("session", u64, "Session id", base.HEX)
field("seq.full", u64, "Sequence number", base.DEC)
field("response_in", ProtoField.framenum, "Answered in", base.NONE, frametype.RESPONSE)
field("response_to", ProtoField.framenum, "Answers", base.NONE, frametype.REQUEST)
field("response_time", ProtoField.relative_time, "Response time")
field("sack_of", ProtoField.framenum, "Says that there arrived", base.NONE, frametype.ACK)
field("first_in", ProtoField.framenum, "The same as", base.NONE, frametype.RETRANS_PREV)
field("acked_in", ProtoField.framenum, "Acknowledges the write of", base.NONE, frametype.ACK)
for _, f in pairs(F) do
    cxloe.fields[#cxloe.fields + 1] = f
end

local X = {}
local function notice(name, text, group, severity)
    X[name] = ProtoExpert.new("cxloe." .. name, text, group, severity)
end
notice("truncated", "Shorter than its command calls for", expert.group.MALFORMED, expert.severity.ERROR)
notice("undelimited", "Unknown command: where it ends cannot be told", expert.group.MALFORMED, expert.severity.ERROR)
notice("unknown_request", "Unknown request", expert.group.MALFORMED, expert.severity.ERROR)
notice("unaligned", "The address is not that of a line", expert.group.MALFORMED, expert.severity.ERROR)
notice("line_count", "A burst has 1 to 64 lines", expert.group.MALFORMED, expert.severity.ERROR)
notice("multi_count", "A frame of lines of any addresses has 2 to 64", expert.group.MALFORMED, expert.severity.ERROR)
notice("empty_mask", "A burst write names at least one line", expert.group.MALFORMED, expert.severity.ERROR)
notice("leaves_page", "A burst stays in its 4 KiB page", expert.group.MALFORMED, expert.severity.ERROR)
notice("bad_trailer", "The trailer is wrong: the frame is dropped (R9)", expert.group.CHECKSUM, expert.severity.ERROR)
notice("padding_used", "Padding is zeros", expert.group.PROTOCOL, expert.severity.WARN)
notice("reserved_used", "Reserved bytes are sent as 0", expert.group.PROTOCOL, expert.severity.NOTE)
notice("refused", "No session", expert.group.RESPONSE_CODE, expert.severity.WARN)
notice("faulted", "The request was not carried out", expert.group.RESPONSE_CODE, expert.severity.WARN)
notice("crowded", "The memory node's queue is too long", expert.group.SEQUENCE, expert.severity.NOTE)
notice("gap", "Requests before this one are missing", expert.group.SEQUENCE, expert.severity.NOTE)
notice("sent_again", "Sent again", expert.group.SEQUENCE, expert.severity.NOTE)
notice("cut", "The capture has not the whole frame", expert.group.UNDECODED, expert.severity.NOTE)
for _, x in pairs(X) do
    cxloe.experts[#cxloe.experts + 1] = x
end

cxloe.prefs.ethertype =
    Pref.string("EtherType", "88b5", "EtherType of the frames, in hexadecimal (option --ethertype of the nodes)")
cxloe.prefs.udp_port =
    Pref.uint("UDP port", 63669, "Port of datagrams that carry frames (option --udp-address of the nodes); 0 for none")
cxloe.prefs.verify = Pref.bool("Verify checksums", true, "Where the capture has the session's handshake")

-- Addresses as bytes, which the checksum covers; Wireshark offers them as fields only.
local eth_dst, eth_src = Field.new("eth.dst"), Field.new("eth.src")

---------------------------------------------------------------------------------------------------------- checksum

local crc_table = {}
for i = 0, 255 do
    local crc = i
    for _ = 1, 8 do
        local low = bit.band(crc, 1)
        crc = bit.rshift(crc, 1)
        if low == 1 then
            crc = bit.bxor(crc, 0x82F63B78)
        end
    end
    crc_table[i] = crc
end

-- CRC-32C of a string, as a number from 0 to 2^32 - 1.
local function crc32c(bytes)
    local crc = bit.tobit(0xFFFFFFFF)
    for at = 1, #bytes do
        local index = bit.band(bit.bxor(crc, bytes:byte(at)), 0xFF)
        crc = bit.bxor(bit.rshift(crc, 8), crc_table[index])
    end
    return bit.bnot(crc) % 0x100000000
end

local function be32(number)
    return string.char(
        math.floor(number / 0x1000000) % 256,
        math.floor(number / 0x10000) % 256,
        math.floor(number / 0x100) % 256,
        math.floor(number) % 256
    )
end

local function be64(number)
    return be32(math.floor(number / 0x100000000) % 0x100000000) .. be32(number % 0x100000000)
end

-- The bytes of an address of Ethernet, or nil when Wireshark has but its name (it does not fill fields on every pass).
local function mac(extractor, shown)
    local found = { extractor() }
    if #found > 0 and found[#found].range then
        return found[#found].range:raw()
    end
    local digits = tostring(shown):gsub(":", "")
    if #digits == 12 and digits:match("^%x+$") then
        return (digits:gsub("%x%x", function(byte)
            return string.char(tonumber(byte, 16))
        end))
    end
    return nil
end

-- What the trailer's checksum should be, `place` saying where in its session the frame is; nil when that is not known.
local function checksum(pinfo, ethertype, place, body)
    if place.session == nil then
        return nil
    end
    local dst, src = mac(eth_dst, pinfo.dl_dst), mac(eth_src, pinfo.dl_src)
    if dst == nil or src == nil then
        return nil
    end
    local kind, stream = 1, 0
    if place.stream ~= nil then
        kind, stream = 0, place.stream
    end
    local pseudo = place.session .. be64(place.full) .. string.char(place.direction, kind, stream, 0)
    local type_bytes = string.char(math.floor(ethertype / 256), ethertype % 256)
    return crc32c(pseudo .. dst .. src .. type_bytes .. body)
end

---------------------------------------------------------------------------------------------------------- sessions

local OUTSIDE = string.rep("\0", 8) -- the session id of the handshake itself
local records -- frame number -> what was found out about it
local peers -- CN and MN -> their sessions: current, previous, pending; and the Hellos waiting for an answer

function cxloe.init()
    records, peers = {}, {}
end

-- A session: `known` if its handshake was seen, so that its numbers count from 1. `burst`, set where it was agreed that burst
-- reads take several answers, is how many lines an answer has.
local function new_session(id, trailer, known)
    local start = nil
    if known then
        start = 0
    end
    return { id = id, trailer = trailer, start = start, streams = {}, control = { [0] = start, [1] = start }, asked = {} }
end

local function stream_of(session, number)
    local stream = session.streams[number]
    if stream == nil then
        stream = { highest = session.start, requests = {} }
        session.streams[number] = stream
    end
    return stream
end

-- The number nearest to `near` whose low 16 bits are `low` (R11).
local function infer(near, low)
    if near == nil then
        return low
    end
    local ahead = (low - near) % 65536
    if ahead >= 32768 and near + ahead - 65536 >= 0 then
        return near + ahead - 65536
    end
    return near + ahead
end

-- CN, MN and direction of a frame.
local function ends_of(pinfo, code)
    local src, dst = tostring(pinfo.dl_src), tostring(pinfo.dl_dst)
    local from, to = src .. "|" .. dst, dst .. "|" .. src
    local to_mn = code < 0x80
    if BOTH_WAYS[code] then
        -- Who of the two is the CN was said by the handshake.
        local function agreed(key)
            return peers[key] and peers[key].current and peers[key].current.id
        end
        to_mn = agreed(from) or to_mn and not agreed(to)
    end
    if to_mn then
        return from, 0
    end
    return to, 1
end

-- A request, or `count` of them in one frame: the first time, or again. What the frame shows is the first one's.
local function follow_request(record, stream, count, number, time)
    for full = record.full, record.full + count - 1 do
        local known = stream.requests[full]
        if known == nil then
            stream.requests[full] = { first = number, time = time, record = record }
            stream.requests[full - 4096] = nil
            if stream.highest == nil or full > stream.highest then
                stream.highest = full
            end
        elseif full == record.full then
            record.first_in = known.first
        end
    end
end

-- An answer, by frame `number`, to the request `full` of a stream.
local function answer(record, stream, full, number, time)
    local request = stream.requests[full]
    if request == nil then
        return
    end
    record.response_to = request.first
    if request.answered == nil then
        request.answered = number
        request.record.response_in = number
        record.response_time = time - request.time
    else
        record.first_in = request.answered
    end
end

local function follow_control(record, session, peer, command, code, number, time)
    if record.direction ~= nil then
        session.control[record.direction] = math.max(record.full, session.control[record.direction] or 0)
    end
    if command.answer then
        session.asked[code .. "/" .. record.direction] = { number = number, time = time, record = record }
    elseif command.question then
        local key = command.question .. "/" .. (1 - record.direction)
        local asked = session.asked[key]
        if asked then
            record.response_to, record.response_time = asked.number, time - asked.time
            asked.record.response_in = number
            session.asked[key] = nil
        end
    end
    if code == 0x13 and peer.pending == session then
        peer.previous, peer.current, peer.pending = peer.current, session, nil
    end
end

-- A Hello or its answer: the session that it may become.
local function follow_handshake(record, peer, code, tvb, number, time)
    if code == 0x10 then
        local nonce = tvb:raw(HEADER + 8, 8)
        if peer.hellos[nonce] then
            record.first_in = peer.hellos[nonce].number
        else
            peer.hellos[nonce] = { number = number, time = time, record = record }
        end
        return
    end
    local hello = peer.hellos[tvb:raw(HEADER + 8, 8)]
    if hello then
        record.response_to, record.response_time = hello.number, time - hello.time
        hello.record.response_in = hello.record.response_in or number
    end
    local id, status, integrity = tvb:raw(HEADER + 16, 8), tvb(HEADER + 4, 1):uint(), tvb(HEADER + 5, 1):uint()
    local known = peer.pending and peer.pending.id == id or peer.current and peer.current.id == id
    if status == 0 and not known then
        local trailer = TRAILERS[integrity] or CRC_LEN
        peer.pending = new_session(id, trailer, true)
        if tvb(HEADER + 40, 4):uint() % (2 * FEATURE_LONG_BURSTS) >= FEATURE_LONG_BURSTS then
            local room = tvb(HEADER + 44, 2):uint() - ETHERNET - HEADER - 1 - trailer
            peer.pending.burst = math.max(math.floor(room / LINE), 0)
        end
    end
end

-- How many bytes the trailer has when no handshake was seen: zeros behind four bytes are padding, anything else is a tag,
-- and what is not zero behind that its counter.
local function trailer_by_form(tvb, body_end)
    local left = tvb:len() - body_end
    if left < TAG_LEN then
        return CRC_LEN
    end
    local rest = tvb:raw(body_end + CRC_LEN, left - CRC_LEN)
    if rest:match("^%z*$") then
        return CRC_LEN
    end
    local all = TAG_LEN + COUNTER_LEN
    local counted = left >= all and not tvb:raw(body_end + TAG_LEN, left - TAG_LEN):match("^%z*$")
    return counted and all or TAG_LEN
end

-- Whether the frame passes as one of this place; nil when it cannot be told.
local function passes(pinfo, ethertype, place, tvb, body_end)
    if tvb:reported_len() < body_end + CRC_LEN then
        return false
    elseif not cxloe.prefs.verify or tvb:len() < body_end + CRC_LEN then
        return nil
    end
    local right = checksum(pinfo, ethertype, place, tvb:raw(0, body_end))
    if right == nil then
        return nil
    end
    return right == tvb(body_end, CRC_LEN):uint()
end

-- How many numbers a frame of a session stands for: one, unless it is of many, or a burst read that takes several answers,
-- and makes sense.
local function numbers_of(tvb, code, command, session)
    if code == BURST_READ and session.burst and session.burst > 0 then
        local lines = tvb(HEADER, 1):uint()
        local fits = math.floor(tvb(9, 2):uint() % 4096 / LINE) + lines <= PAGE_LINES
        if lines > session.burst and fits and tvb(10, 1):uint() % LINE == 0 then
            return math.ceil(lines / session.burst)
        end
    elseif command and command.many then
        local count = tvb(HEADER, 1):uint()
        if count >= 2 and count <= PAGE_LINES then
            return count
        end
    end
    return 1
end

-- Gives a frame that is met for the first time its place among the others.
local function follow(tvb, pinfo, code, body_end)
    local command, number, time = COMMANDS[code], pinfo.number, pinfo.rel_ts
    local kind = command and command[2] or "request"
    local record = { status = UNVERIFIED, trailer = CRC_LEN }
    records[number] = record
    if kind == "echo" then
        record.trailer = 0
        record.direction = code < 0x80 and 0 or 1
        return record
    end
    local key
    key, record.direction = ends_of(pinfo, code)
    local peer = peers[key]
    if peer == nil then
        peer = { hellos = {} }
        peers[key] = peer
    end
    if kind == "handshake" then
        record.place = { session = OUTSIDE, full = 0, direction = record.direction }
        local right = passes(pinfo, pinfo.match_uint, record.place, tvb, body_end)
        record.status = right == nil and UNVERIFIED or right and GOOD or BAD
        if record.status ~= BAD then
            follow_handshake(record, peer, code, tvb, number, time)
        end
        return record
    end

    local low, stream_number = tvb(1, 2):uint(), nil
    if kind ~= "control" then
        stream_number = tvb(3, 1):uint()
    end
    local candidates = { peer.current, peer.previous }
    if code == 0x13 and peer.pending then
        candidates = { peer.pending, peer.current, peer.previous }
    elseif peer.current == nil then
        peer.current = new_session(nil, nil, false)
        candidates = { peer.current }
    end
    local session = candidates[1]
    local first_trailer
    for index = 1, 3 do
        local candidate = candidates[index]
        if candidate ~= nil then
            local near = candidate.control[record.direction]
            if stream_number ~= nil then
                near = stream_of(candidate, stream_number).highest
            end
            local place = { session = candidate.id, full = infer(near, low), direction = record.direction }
            place.stream = stream_number
            local trailer = candidate.trailer or trailer_by_form(tvb, body_end)
            local right = nil
            if tvb:reported_len() < body_end + trailer and trailer > CRC_LEN then
                right = false
            elseif trailer == CRC_LEN then
                right = passes(pinfo, pinfo.match_uint, place, tvb, body_end)
            end
            if right ~= false or first_trailer == nil then
                first_trailer = true
                session, record.trailer = candidate, trailer
                record.place, record.full = place, place.full
                record.status = right == nil and UNVERIFIED or right and GOOD or BAD
            end
            if right ~= false then
                break
            end
        end
    end
    if record.status == BAD then
        record.full = nil
        return record
    end
    record.session = session.id
    if kind == "control" then
        follow_control(record, session, peer, command, code, number, time)
        return record
    end
    local stream = stream_of(session, stream_number)
    if kind == "request" then
        follow_request(record, stream, numbers_of(tvb, code, command, session), number, time)
    elseif kind == "response" then
        answer(record, stream, record.full, number, time)
        -- What the frame shows is the first one's.
        for full = record.full + 1, record.full + numbers_of(tvb, code, command, session) - 1 do
            answer({}, stream, full, number, time)
        end
    else
        local early = stream.requests[record.full]
        record.sack_of = early and early.first
        -- Only what is not encrypted says which write is acknowledged.
        if code == 0x84 and record.trailer == CRC_LEN and tvb:len() >= HEADER + 6 then
            local acked = stream_of(session, tvb(HEADER + 4, 1):uint())
            local acked_record = {}
            answer(acked_record, acked, infer(acked.highest, tvb(HEADER + 2, 2):uint()), number, time)
            record.acked_in, record.response_time = acked_record.response_to, acked_record.response_time
        end
    end
    return record
end

---------------------------------------------------------------------------------------------------------- payloads

-- How many bytes of payload the command calls for (as far as `tvb` shows), and what is wrong when that cannot be told.
local function payload_length(tvb, code)
    local have = tvb:len() - HEADER
    local form = COMMANDS[code] and COMMANDS[code].payload
    if type(form) == "number" then
        return form
    elseif form == "addresses" or form == "address_lines" then
        local count = have < 1 and 0 or tvb(HEADER, 1):uint()
        return 1 + ADDRESS * math.max(count - 1, 0) + (form == "address_lines" and LINE * count or 0)
    elseif form == "lines" then
        return have < 1 and 1 or 1 + LINE * tvb(HEADER, 1):uint()
    elseif form == "mask_lines" then
        if have < 8 then
            return 8
        end
        local lines = 0
        for at = 0, 7 do
            local byte = tvb(HEADER + at, 1):uint()
            while byte > 0 do
                lines, byte = lines + byte % 2, math.floor(byte / 2)
            end
        end
        return 8 + LINE * lines
    elseif code <= 0x0F or code >= 0x20 and code <= 0x6F then
        return 0
    end
    return nil
end

-- How much of the payload stays readable when a frame is sealed.
local function clear_length(code)
    return COMMANDS[code] and COMMANDS[code].clear or 0
end

local function show_line(tree, tvb, at, address)
    local name = string.format("Line at 0x%x", address)
    tree:add(F.line, tvb(at, LINE)):prepend_text(name .. " - ")
end

local function set_bits(tvb)
    local set = {}
    for index = 0, 63 do
        local byte = tvb(7 - math.floor(index / 8), 1):uint()
        if math.floor(byte / 2 ^ (index % 8)) % 2 == 1 then
            set[#set + 1] = index
        end
    end
    return set
end

-- Adds fields that follow each other: pairs of a name and a length.
local function show_fields(tree, tvb, fields)
    local at = 0
    for _, entry in ipairs(fields) do
        tree:add(F[entry[1]], tvb(at, entry[2]))
        at = at + entry[2]
    end
end

local function show_reserved(tree, tvb, name)
    local item = tree:add(F[name], tvb)
    if not tvb:raw():match("^%z*$") then
        item:add_proto_expert_info(X.reserved_used)
    end
end

local show = {}

show[0x02] = function(tree, tvb, _, address)
    show_line(tree, tvb, 0, address)
end
show[0x81] = show[0x02]

show[0x03] = function(tree, tvb, info)
    tree:add(F.lines, tvb(0, 1))
    info[#info + 1] = string.format("%d lines", tvb(0, 1):uint())
end

show[0x86] = function(tree, tvb, info, address)
    show[0x03](tree, tvb, info)
    for index = 0, (tvb:len() - 1) / LINE - 1 do
        show_line(tree, tvb, 1 + LINE * index, address + LINE * index)
    end
end

-- Lines of any addresses: all but the first, which the header has, and what is to be written.
show[0x05] = function(tree, tvb, info, address)
    local count = tvb(0, 1):uint()
    show[0x03](tree, tvb, info)
    if tvb:len() == 1 then
        return
    end
    local addresses = { address }
    for index = 1, count - 1 do
        local at = tvb(1 + ADDRESS * (index - 1), ADDRESS)
        tree:add(F.other_address, at)
        addresses[#addresses + 1] = at:uint64():tonumber()
    end
    local lines = 1 + ADDRESS * math.max(count - 1, 0)
    for index = 0, (tvb:len() - lines) / LINE - 1 do
        show_line(tree, tvb, lines + LINE * index, addresses[index + 1])
    end
end
show[0x06] = show[0x05]

-- Which lines these are, the requests say.
show[0x88] = function(tree, tvb, info)
    show[0x03](tree, tvb, info)
    for index = 0, (tvb:len() - 1) / LINE - 1 do
        tree:add(F.line, tvb(1 + LINE * index, LINE)):prepend_text(string.format("Line %d - ", index))
    end
end
show[0x89] = show[0x03]

show[0x04] = function(tree, tvb, info, address)
    local set = set_bits(tvb(0, 8):tvb())
    tree:add(F.mask, tvb(0, 8)):append_text(string.format(" (%d lines)", #set))
    info[#info + 1] = string.format("%d lines", #set)
    for place, index in ipairs(set) do
        if 8 + LINE * place <= tvb:len() then
            show_line(tree, tvb, 8 + LINE * (place - 1), address + LINE * index)
        end
    end
end

show[0x10] = function(tree, tvb, info)
    show_fields(tree, tvb, {
        { "hello.version", 2 }, { "hello.integrity", 1 }, { "hello.streams", 1 }, { "hello.features", 4 },
        { "hello.nonce", 8 }, { "hello.instance", 8 }, { "hello.max_frame", 2 },
        { "hello.shard", 1 }, { "hello.owner", 6 },
    })
    show_reserved(tree, tvb(33, 7), "hello.reserved")
    info[#info + 1] = string.format("version %d", tvb(0, 2):uint())
end

show[0x90] = function(tree, tvb, info)
    show_fields(tree, tvb, {
        { "hello_ack.version_min", 2 }, { "hello_ack.version_max", 2 }, { "hello_ack.status", 1 },
        { "hello_ack.integrity", 1 }, { "hello_ack.window", 2 }, { "hello_ack.hello_nonce", 8 },
        { "hello_ack.session", 8 }, { "hello_ack.nonce", 8 }, { "hello_ack.incarnation", 8 },
        { "hello_ack.features", 4 }, { "hello_ack.max_frame", 2 }, { "hello_ack.streams", 1 },
    })
    show_reserved(tree, tvb(47, 17), "hello_ack.reserved")
    local status = tvb(4, 1):uint()
    if status == 0 then
        info[#info + 1] = "session 0x" .. tvb(16, 8):bytes():tohex(true)
    else
        info[#info + 1] = HELLO_STATUS[status] or string.format("status %d", status)
        tree:add_proto_expert_info(X.refused, info[#info])
    end
end

show[0x83] = function(tree, tvb, info)
    tree:add(F["sack.last_in_order"], tvb(0, 2))
    info[#info + 1] = string.format("complete up to %d", tvb(0, 2):uint())
    tree:add_proto_expert_info(X.gap)
end

show[0x84] = function(tree, tvb, info)
    show[0x83](tree, tvb, info)
    tree:add(F["sack.acked_seq"], tvb(2, 2))
    tree:add(F["sack.acked_stream"], tvb(4, 1))
    tree:add(F["sack.acked_tag"], tvb(5, 1))
    info[#info + 1] = string.format("acknowledges %d of stream %d", tvb(2, 2):uint(), tvb(4, 1):uint())
end

show[0x85] = function(tree, tvb, info)
    tree:add(F["congestion.classes"], tvb(0, 2))
    local meant = {}
    for class = 0, 7 do
        local item = tree:add(F["congestion.quanta"], tvb(2 + 2 * class, 2))
        item:prepend_text(string.format("Class %d: ", class))
        if math.floor(tvb(1, 1):uint() / 2 ^ class) % 2 == 1 then
            meant[#meant + 1] = string.format("class %d: %d quanta", class, tvb(2 + 2 * class, 2):uint())
        else
            item:append_text(" (not meant)")
        end
    end
    info[#info + 1] = table.concat(meant, ", ")
    tree:add_proto_expert_info(X.crowded)
end

show[0x87] = function(tree, tvb, info)
    tree:add(F["fault.status"], tvb(0, 1))
    local status = tvb(0, 1):uint()
    info[#info + 1] = FAULT_STATUS[status] or string.format("status %d", status)
    tree:add_proto_expert_info(X.faulted, info[#info])
end

show[0x70] = function(tree, tvb)
    show_fields(tree, tvb, { { "echo.reply_len", 2 }, { "echo.reply_count", 2 } })
end

show[0xF0] = function(tree, tvb)
    tree:add(F["echo.index"], tvb(0, 2))
end

-- What makes a frame senseless though it can be delimited (R9), in the order in which nodes look.
local function malformed(tvb, code)
    if COMMANDS[code] == nil then
        return X.unknown_request
    end
    local burst = code == 0x03 or code == 0x04
    if COMMANDS[code].many then
        -- Addresses are each request's own affair.
        local count = tvb(HEADER, 1):uint()
        return (count < 2 or count > PAGE_LINES) and X.multi_count or nil
    end
    if COMMANDS[code][2] == "request" and tvb(10, 1):uint() % LINE ~= 0 then
        return X.unaligned
    end
    local lines
    if code == 0x03 or code == 0x86 then
        lines = tvb(HEADER, 1):uint()
        if lines == 0 or lines > PAGE_LINES then
            return X.line_count
        end
    elseif code == 0x04 then
        local set = set_bits(tvb(HEADER, 8):tvb())
        if #set == 0 then
            return X.empty_mask
        end
        lines = set[#set] + 1
    end
    if burst and math.floor(tvb(9, 2):uint() % 4096 / LINE) + lines > PAGE_LINES then
        return X.leaves_page
    end
    return nil
end

-------------------------------------------------------------------------------------------------------- the frame

local function show_record(tree, record)
    local function add(name, value)
        if value ~= nil then
            tree:add(F[name], value):set_generated()
        end
    end
    add("direction", record.direction)
    if record.session then
        local high, low = Struct.unpack(">I4I4", record.session)
        add("session", UInt64.new(low, high))
    end
    add("seq.full", record.full and UInt64.new(record.full % 0x100000000, math.floor(record.full / 0x100000000)))
    add("first_in", record.first_in)
    add("sack_of", record.sack_of)
    add("acked_in", record.acked_in)
    add("response_to", record.response_to)
    add("response_in", record.response_in)
    if record.response_time then
        local seconds = math.floor(record.response_time)
        add("response_time", NSTime.new(seconds, math.floor((record.response_time - seconds) * 1e9 + 0.5)))
    end
    if record.first_in then
        tree:add_proto_expert_info(X.sent_again, string.format("Sent again; first in frame %d", record.first_in))
    end
end

-- What stands behind the checksum of a Hello or HelloAck of version 2: field and length, one behind the other.
local KEYED = {
    [0x10] = {
        { "keyed.ephemeral", 32 }, { "keyed.static", 48 }, { "keyed.stamp", 28 }, { "keyed.mac1", 16 },
        { "keyed.mac2", 16 },
    },
    [0x90] = { { "keyed.ephemeral", 32 }, { "keyed.tag", 16 }, { "keyed.mac", 16 } },
    cookie = { { "keyed.cookie", 44 } },
}

-- Shows it from `at` on; how long it is, 0 if there is none.
local function show_keyed(tree, tvb, at)
    local code = tvb(0, 1):uint()
    local fields = KEYED[code]
    if code == 0x10 and tvb(HEADER, 2):uint() ~= 2 then
        return 0
    elseif code == 0x90 and tvb(HEADER + 4, 1):uint() == 9 then
        fields = KEYED.cookie
    end
    local total = 0
    for _, part in ipairs(fields or {}) do
        total = total + part[2]
    end
    if total == 0 or tvb:len() < at + total then
        return 0
    end
    for _, part in ipairs(fields) do
        tree:add(F[part[1]], tvb(at, part[2]))
        at = at + part[2]
    end
    return total
end

local function show_trailer(tree, tvb, pinfo, record, body_end)
    local trailer = math.min(record.trailer, tvb:len() - body_end)
    if trailer > 0 then
        local name = record.trailer == CRC_LEN and "trailer.crc" or "trailer.tag"
        if trailer < record.trailer then
            name = "unknown"
        end
        tree:add(F[name], tvb(body_end, name == "trailer.tag" and TAG_LEN or trailer))
        if name == "trailer.tag" and trailer > TAG_LEN then
            tree:add(F["trailer.counter"], tvb(body_end + TAG_LEN, COUNTER_LEN))
        end
    end
    -- A first pass may not have had what the checksum needs.
    if record.status == UNVERIFIED and record.trailer == CRC_LEN and record.place then
        local right = passes(pinfo, pinfo.match_uint, record.place, tvb, body_end)
        record.status = right == nil and UNVERIFIED or right and GOOD or BAD
    end
    if record.trailer > 0 then
        local item = tree:add(F["trailer.status"], record.status)
        item:set_generated()
        if record.status == BAD then
            item:add_proto_expert_info(X.bad_trailer)
        end
    end
    local behind = body_end + trailer
    if trailer == CRC_LEN then
        behind = behind + show_keyed(tree, tvb, behind)
    end
    local padding = tvb:len() - behind
    if padding > 0 then
        local item = tree:add(F.padding, tvb(behind, padding))
        if record.trailer > 0 and not tvb:raw(behind, padding):match("^%z*$") then
            item:add_proto_expert_info(X.padding_used)
        end
    end
end

function cxloe.dissector(tvb, pinfo, root)
    pinfo.cols.protocol = "CXLoE"
    local tree = root:add(cxloe, tvb())
    local captured, sent = tvb:len(), tvb:reported_len()
    if captured < sent then
        tree:add_proto_expert_info(X.cut)
    end
    if captured < HEADER then
        pinfo.cols.info = "shorter than a header"
        tree:add_proto_expert_info(sent < HEADER and X.truncated or X.cut)
        return captured
    end

    local code = tvb(0, 1):uint()
    local command = COMMANDS[code]
    local title = command and command[1] or string.format("Unknown command 0x%02x", code)
    tree:append_text(", " .. title)
    tree:add(F.command, tvb(0, 1))
    tree:add(F.seq, tvb(1, 2))
    tree:add(F.stream, tvb(3, 1))
    tree:add(F.tag, tvb(4, 1))
    tree:add(F.address, tvb(5, 6))
    local address = tvb(5, 6):uint64():tonumber()
    local info = { title }
    local kind = command and command[2] or "request"
    if kind == "request" or kind == "response" or kind == "sack" then
        info[1] = string.format("%s %d/%d tag %d 0x%x", title, tvb(3, 1):uint(), tvb(1, 2):uint(), tvb(4, 1):uint(), address)
    end

    local length = payload_length(tvb, code)
    if length == nil or HEADER + length > captured then
        pinfo.cols.info = table.concat(info, ", ")
        if captured > HEADER then
            tree:add(F.unknown, tvb(HEADER))
        end
        if length == nil then
            tree:add_proto_expert_info(X.undelimited)
        elseif HEADER + length > sent then
            tree:add_proto_expert_info(
                X.truncated,
                string.format("%d bytes where %d are called for", ETHERNET + sent, ETHERNET + HEADER + length)
            )
        end
        return captured
    end
    local body_end = HEADER + length
    local record = records[pinfo.number] or follow(tvb, pinfo, code, body_end)

    local sealed = record.trailer > CRC_LEN
    local clear = sealed and clear_length(code) or length
    if sealed and length > clear then
        if clear > 0 then
            show[code](tree, tvb(HEADER, clear):tvb(), info, address)
        end
        tree:add(F.sealed, tvb(HEADER + clear, length - clear))
        info[#info + 1] = "sealed"
    elseif length > 0 then
        show[code](tree, tvb(HEADER, length):tvb(), info, address)
    end
    show_trailer(tree, tvb, pinfo, record, body_end)
    local wrong = malformed(tvb, code)
    if wrong then
        tree:add_proto_expert_info(wrong)
        info[#info + 1] = "malformed"
    end
    show_record(tree, record)
    if record.status == BAD then
        info[#info + 1] = "BAD TRAILER"
    end
    if record.first_in then
        info[#info + 1] = "sent again"
    end
    pinfo.cols.info = table.concat(info, ", ")
    return captured
end

------------------------------------------------------------------------------------------------------ registration

-- A datagram of links `udp` and `--encap udp` carries a frame as it is, from its destination address on.
local registered_port
local function register_port()
    local ports = DissectorTable.get("udp.port")
    local ethernet = Dissector.get("eth_withoutfcs")
    if registered_port then
        ports:remove(registered_port, ethernet)
        registered_port = nil
    end
    local wanted = cxloe.prefs.udp_port
    if wanted > 0 and wanted <= 0xFFFF then
        ports:add(wanted, ethernet)
        registered_port = wanted
    end
end

local registered
local function register()
    register_port()
    local table_of_types = DissectorTable.get("ethertype")
    local wanted = tonumber((cxloe.prefs.ethertype:gsub("^0[xX]", "")), 16)
    if registered then
        table_of_types:remove(registered, cxloe)
        registered = nil
    end
    if wanted and wanted >= 0x600 and wanted <= 0xFFFF then
        table_of_types:add(wanted, cxloe)
        registered = wanted
    end
end
cxloe.prefs_changed = register
register()

//! The 48-bit Ethernet address. A CN's address is also its CN id, so it serves as a key of tables, as a text
//! in configuration files and as six bytes of every frame.

use alloc::borrow::ToOwned;
use alloc::string::String;
use core::fmt;
use core::str::FromStr;

/// IEEE 802 MAC address; octets in the order of transmission.
#[derive(
    Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default, serde::Serialize, serde::Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub struct Mac(pub [u8; 6]);

/// Error: the text is not a MAC address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot read `{0}` as a MAC address: write six pairs of hexadecimal digits joined by `:` or `-`, as in 02:00:00:00:00:01"
)]
pub struct ParseMacError(pub String);

impl Mac {
    /// Broadcast address: every station of the network segment receives the frame.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Returns the address as the low 48 bits of an integer, the first octet most significant.
    #[inline]
    pub const fn to_u64(self) -> u64 {
        let [a, b, c, d, e, f] = self.0;
        u64::from_be_bytes([0, 0, a, b, c, d, e, f])
    }

    /// Inverse of [`Mac::to_u64`]; ignores the upper 16 bits.
    #[inline]
    pub const fn from_u64(value: u64) -> Self {
        let [_, _, a, b, c, d, e, f] = value.to_be_bytes();
        Self([a, b, c, d, e, f])
    }

    /// Returns the six octets in the order of transmission.
    #[inline]
    pub const fn octets(self) -> [u8; 6] {
        self.0
    }

    /// Whether the address can belong to one station: it is neither all zeros nor a group address (IEEE 802:
    /// lowest bit of the first octet).
    #[inline]
    pub const fn is_unicast(self) -> bool {
        self.to_u64() != 0 && !self.is_multicast()
    }

    /// Returns the address of shard `shard` (below [`SHARDS_MAX`](super::SHARDS_MAX)) of the station with
    /// this address. Shard 0 has the station's own address, others a locally administered one. The last two
    /// octets count up, so that hashes of the addresses spread the shards. The high half of the first octet
    /// differs, so that no shard has the address of a neighbouring station.
    #[inline]
    #[must_use]
    pub const fn shard(self, shard: u8) -> Self {
        if shard == 0 {
            return self;
        }
        let [a, b, c, d, e, f] = self.0;
        let [e, f] = u16::from_be_bytes([e, f]).wrapping_add(shard as u16).to_be_bytes();
        // Bit 1 of the first octet marks a locally administered address (IEEE 802).
        Self([(a ^ (shard << 4)) | 2, b, c, d, e, f])
    }

    /// Whether the address belongs to a group of stations, which includes broadcast.
    #[inline]
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }
}

impl From<[u8; 6]> for Mac {
    fn from(octets: [u8; 6]) -> Self {
        Self(octets)
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Mac {
    type Err = ParseMacError;

    fn from_str(text: &str) -> Result<Self, ParseMacError> {
        let error = || ParseMacError(text.to_owned());
        let mut mac = [0; 6];
        let mut bytes = mac.iter_mut();
        for pair in text.split([':', '-']) {
            if pair.len() != 2 || !pair.bytes().all(|c| c.is_ascii_hexdigit()) {
                return Err(error());
            }
            *bytes.next().ok_or_else(error)? = u8::from_str_radix(pair, 16).map_err(|_| error())?;
        }
        if bytes.next().is_some() {
            return Err(error());
        }
        Ok(Self(mac))
    }
}

crate::spelled!(Mac);

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Mac {
    fn schema_name() -> alloc::borrow::Cow<'static, str> {
        "Mac".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "An Ethernet address: six hexadecimal octets, the first on the wire first.",
            "type": "string",
            "pattern": "^[0-9A-Fa-f]{2}([:-][0-9A-Fa-f]{2}){5}$",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = Mac([0x02, 0xab, 0, 1, 2, 0xff]);

    #[test]
    fn shards_have_addresses_of_their_own() {
        let stations: Vec<Mac> = (0..=255).map(|last| Mac([0x02, 0xab, 0, 1, 0x55, last])).collect();
        let shards =
            |mac: &Mac| (0..super::super::SHARDS_MAX).map(|shard| mac.shard(shard)).collect::<Vec<_>>();
        let mut all: Vec<Mac> = stations.iter().flat_map(shards).collect();
        assert!(all.iter().all(|mac| mac.is_unicast()));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 256 * 16, "no two shards of different stations meet");
        assert_eq!(stations[7].shard(0), stations[7]);
        assert_eq!(Mac([0, 1, 2, 3, 0xff, 0xff]).shard(3), Mac([0x32, 1, 2, 3, 0, 2]));
    }

    #[test]
    fn text_and_back() {
        assert_eq!(MAC.to_string(), "02:ab:00:01:02:ff");
        assert_eq!(format!("{MAC:?}"), "02:ab:00:01:02:ff");
        assert_eq!("02:AB:00:01:02:fF".parse(), Ok(MAC));
        assert_eq!("02-ab-00-01-02-ff".parse(), Ok(MAC));
        for bad in
            ["", "02", "02:ab:00:01:02", "02:ab:00:01:02:ff:00", "02:ab:00:01:02:fg", "2:ab:00:01:02:ff"]
        {
            assert_eq!(bad.parse::<Mac>(), Err(ParseMacError(bad.to_owned())));
        }
        // `from_str_radix` alone would accept a sign.
        assert!("+2:ab:00:01:02:ff".parse::<Mac>().is_err());
    }

    #[test]
    fn serde_uses_the_text() {
        let json = serde_json::to_string(&MAC).unwrap();
        assert_eq!(json, "\"02:ab:00:01:02:ff\"");
        assert_eq!(serde_json::from_str::<Mac>(&json).unwrap(), MAC);
        assert!(serde_json::from_str::<Mac>("\"02\"").is_err());
    }

    #[test]
    fn integer_and_back() {
        assert_eq!(MAC.to_u64(), 0x02ab_0001_02ff);
        assert_eq!(Mac::from_u64(0xdead_02ab_0001_02ff), MAC);
        assert!(!MAC.is_multicast());
        assert!(Mac::BROADCAST.is_multicast());
        assert!(Mac([1, 0x80, 0xc2, 0, 0, 1]).is_multicast());
        assert!(MAC.is_unicast());
        assert!(!Mac::BROADCAST.is_unicast() && !Mac::default().is_unicast());
    }
}

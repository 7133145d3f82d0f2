//! Conversion between names of regions and tags of dynamic capacity, which have 16 bytes. A name of up to 16
//! characters, padded with zeros, is also a tag, and such a tag is converted back to that name. The name of a region
//! with any other tag contains the tag in hexadecimal.

use super::dcd::{TAG_BYTES, Tag};
use cxloe_fabric::model::Name;

/// Prefix of a region's name that contains a tag in hexadecimal.
const SPELLED_OUT: &str = "dc-";
/// Offset and prime of FNV-1a with 128 bits.
const FNV_OFFSET: u128 = 0x6C62_272E_07BB_0142_62B8_2175_6295_C58D;
const FNV_PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013B;

/// Returns the tag for capacity that belongs to the region with this name.
pub fn of(name: &Name) -> Tag {
    let text = name.as_str();
    if let Some(tag) = text.strip_prefix(SPELLED_OUT).and_then(from_hexadecimal) {
        return tag;
    }
    let mut tag = Tag::default();
    match tag.get_mut(..text.len()) {
        Some(start) => start.copy_from_slice(text.as_bytes()),
        // The name is too long for a tag and contains none, so the hash of the name is the tag.
        None => {
            let hash =
                text.bytes().fold(FNV_OFFSET, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(FNV_PRIME));
            tag = hash.to_be_bytes();
        }
    }
    tag
}

/// Returns the name of the region with this tag; `None` for zeros, which mean no tag.
pub fn name_of(tag: &Tag) -> Option<Name> {
    let end = tag.iter().rposition(|byte| *byte != 0)? + 1;
    let text = std::str::from_utf8(&tag[..end]).ok().and_then(|text| Name::new(text).ok());
    text.or_else(|| {
        let digits: String = tag.iter().map(|byte| format!("{byte:02x}")).collect();
        Name::new(format!("{SPELLED_OUT}{digits}")).ok()
    })
}

fn from_hexadecimal(digits: &str) -> Option<Tag> {
    let canonical =
        digits.len() == 2 * TAG_BYTES && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let number = canonical.then(|| u128::from_str_radix(digits, 16).ok()).flatten()?;
    Some(number.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn short_names_are_their_tags() {
        let name = Name::new("scratch").unwrap();
        assert_eq!((of(&name), name_of(&of(&name))), (*b"scratch\0\0\0\0\0\0\0\0\0", Some(name)));
        assert_eq!(name_of(&Tag::default()), None);
        let long: Vec<Name> =
            ["a-name-of-17-char", "a-name-of-17-chas"].map(|text| Name::new(text).unwrap()).into();
        assert_ne!(of(&long[0]), of(&long[1]));
    }

    proptest! {
        #[test]
        fn the_region_of_a_tag_has_that_tag(tag in prop_oneof![any::<Tag>(), any::<[u8; 2]>().prop_map(|[a, b]| {
            let mut tag = Tag::default();
            (tag[0], tag[9]) = (a, b);
            tag
        })]) {
            prop_assume!(tag != Tag::default());
            prop_assert_eq!(name_of(&tag).map(|name| of(&name)), Some(tag));
        }
    }
}

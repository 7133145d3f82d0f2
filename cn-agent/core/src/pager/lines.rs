//! Comparison of pages by lines.

use cxloe_wire::frame::LINE_SIZE;

use super::memory::{PAGE_BYTES, Page};

/// Mask of the lines of `page` that differ from those of `twin`; the lowest bit is the first line.
#[inline]
pub fn changed(page: &Page, twin: &Page) -> u64 {
    let lines = page.as_chunks::<LINE_SIZE>().0.iter().zip(twin.as_chunks::<LINE_SIZE>().0);
    lines.enumerate().fold(0, |mask, (line, (now, before))| mask | u64::from(now != before) << line)
}

/// Mask of the lines of `page` that are not all zeros; the lowest bit is the first line.
#[inline]
pub fn written(page: &Page) -> u64 {
    changed(page, &[0; PAGE_BYTES])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_lines_that_differ() {
        let twin = [5; PAGE_BYTES];
        let mut page = twin;
        assert_eq!(changed(&page, &twin), 0);
        (page[0], page[63], page[64 * 7 + 9], page[4095]) = (1, 1, 1, 1);
        assert_eq!(changed(&page, &twin), 1 | 1 << 7 | 1 << 63);
        assert_eq!(written(&twin), u64::MAX);
        assert_eq!(written(&[0; PAGE_BYTES]), 0);
    }
}

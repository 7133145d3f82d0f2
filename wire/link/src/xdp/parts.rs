//! Assembly of frames that have arrived in several chunks, so that a receiver gets each frame in one piece.
//!
//! The kernel writes each part after a headroom, so there is a gap between parts even in adjacent chunks. The
//! second part is moved next to the first; for a page with header and trailer, that is a few hundred bytes.
//! Only if the chunks are out of order, as after losses, are both parts copied.

#![expect(unsafe_code, reason = "frames lie in memory shared with the kernel")]

use super::ring::{Descriptors, Ring, Umem};

/// XDP_PKT_CONTD: the next entry continues the same frame.
pub(super) const HAS_MORE: u32 = 1;

/// Returns the frame that begins at the next of `ready` entries of the receive ring, and the number of entries that it
/// takes. The number is 0 if the end of the frame has not arrived. The frame is `None` if its parts must be copied and
/// do not fit `scratch`.
#[inline(never)]
pub(super) fn frame_at<'a>(
    rx: &Ring<Descriptors>,
    ready: u32,
    umem: &'a Umem,
    scratch: &'a mut [u8],
) -> (u32, Option<&'a mut [u8]>) {
    let Some(more) = (0..ready).position(|ahead| rx.at(ahead).options & HAS_MORE == 0) else {
        return (0, None);
    };
    let entries = more as u32 + 1;
    let parts = (0..entries).map(|ahead| rx.at(ahead));
    (entries, join(parts.map(|d| (d.addr, d.len as usize)), umem, scratch))
}

/// Joins the parts of a frame, each given by address and length. The caller must own the chunks of all parts.
fn join<'a>(
    mut parts: impl Iterator<Item = (u64, usize)> + Clone,
    umem: &'a Umem,
    scratch: &'a mut [u8],
) -> Option<&'a mut [u8]> {
    let (mut rest, chunk) = (parts.clone(), umem.chunk() as u64);
    let (first, mut len) = rest.next()?;
    umem.slice(first, len)?;
    let is_in_line = rest.clone().count() == 1
        && rest.clone().all(|(addr, _)| (first + len as u64) == addr & !(chunk - 1));
    if is_in_line {
        let (second, more) = rest.next()?;
        let (from, to) = (umem.slice(second, more)?, umem.span(first + len as u64, more)?);
        // SAFETY: both ranges lie in the second chunk, which the caller owns; they may overlap.
        unsafe { std::ptr::copy(from.cast::<u8>().cast_const(), to.cast::<u8>(), more) };
        len += more;
        // SAFETY: all bytes from the beginning of the first part on lie in the two chunks, which the caller
        // owns.
        return umem.span(first, len).map(|frame| unsafe { &mut *frame });
    }
    let mut filled = 0;
    parts.try_for_each(|(addr, len)| {
        let part = umem.slice(addr, len)?;
        // SAFETY: the caller owns the chunk, and no other code writes it.
        scratch.get_mut(filled..filled + len)?.copy_from_slice(unsafe { &*part });
        filled += len;
        Some(())
    })?;
    scratch.get_mut(..filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: usize = 4096;
    const HEADROOM: u64 = 256;

    /// Makes memory of four chunks with the parts of a frame in the order of `chunks`, each after its chunk's
    /// headroom. The byte values differ from offset to offset.
    fn arrived(chunks: &[u64], lens: &[usize]) -> (Umem, Vec<(u64, usize)>, Vec<u8>) {
        let umem = Umem::of(CHUNK, 4);
        let mut frame = Vec::new();
        let mut parts = Vec::new();
        for (index, (chunk, len)) in chunks.iter().zip(lens).enumerate() {
            let at = chunk * CHUNK as u64 + HEADROOM;
            let bytes: Vec<u8> = (0..*len).map(|i| (i * 7 + index * 91) as u8).collect();
            // SAFETY: no other code uses the memory.
            unsafe { (*umem.slice(at, *len).unwrap()).copy_from_slice(&bytes) };
            frame.extend(bytes);
            parts.push((at, *len));
        }
        (umem, parts, frame)
    }

    #[test]
    fn parts_in_any_order_make_the_frame() {
        let full = CHUNK - HEADROOM as usize;
        for (chunks, lens) in [
            (&[0, 1][..], &[full, 300][..]),
            (&[1, 2], &[full, full]),
            (&[2, 1], &[full, 300]),
            (&[3, 0], &[full, 1]),
            (&[0, 1], &[100, 300]),
            (&[0, 2], &[full, 300]),
        ] {
            let (umem, parts, frame) = arrived(chunks, lens);
            let mut scratch = vec![0; 2 * CHUNK];
            let joined = join(parts.into_iter(), &umem, &mut scratch).unwrap();
            assert!(joined == frame, "{chunks:?} {lens:?}");
        }
    }

    #[test]
    fn what_does_not_fit_is_no_frame() {
        let full = CHUNK - HEADROOM as usize;
        let (umem, parts, _) = arrived(&[0, 1, 2], &[full, full, full]);
        let mut scratch = vec![0; 2 * CHUNK];
        assert!(join(parts.into_iter(), &umem, &mut scratch).is_none());
        let outside = [(0, full), (4 * CHUNK as u64, 1)];
        assert!(join(outside.into_iter(), &umem, &mut scratch).is_none());
        let across = [(0, 1), (CHUNK as u64 - 1, 2)];
        assert!(join(across.into_iter(), &umem, &mut scratch).is_none());
    }
}

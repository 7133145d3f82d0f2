//! Ends a monitor that would pass the region's memory on: to another process, as a descriptor in a message
//! (vhost-user), or to a device, for which pages are pinned (VFIO, iommufd). The agent serves only faults of the
//! monitor's own mappings. Another process would read absent pages as zeros, and its writes would be lost; a device
//! would transfer to pages that have been evicted. So the monitor ends before the memory is passed on.

#![expect(unsafe_code, reason = "arguments of sendmsg and ioctl are raw pointers")]

use std::ffi::{c_int, c_ulong, c_void};

use crate::mappings;
use crate::settings::Settings;

/// Exit code of a monitor that was configured to pass its memory on: `EX_CONFIG` of `sysexits.h`.
const REFUSED: c_int = 78;

/// `VFIO_IOMMU_MAP_DMA` of `linux/vfio.h`.
const VFIO_IOMMU_MAP_DMA: u32 = 0x3B71;
/// `IOMMU_IOAS_MAP` of `linux/iommufd.h`.
const IOMMU_IOAS_MAP: u32 = 0x3B85;

/// Argument of [`VFIO_IOMMU_MAP_DMA`]: `struct vfio_iommu_type1_dma_map`.
#[repr(C)]
#[derive(Clone, Copy)]
struct VfioMap {
    argsz: u32,
    flags: u32,
    vaddr: u64,
    iova: u64,
    size: u64,
}

/// Argument of [`IOMMU_IOAS_MAP`]: `struct iommu_ioas_map`.
#[repr(C)]
#[derive(Clone, Copy)]
struct IommufdMap {
    size: u32,
    flags: u32,
    ioas_id: u32,
    reserved: u32,
    user_va: u64,
    length: u64,
    iova: u64,
}

/// Whether a message passes a descriptor of the region's memory.
///
/// # Safety
/// `message` is what `sendmsg(2)` takes.
pub unsafe fn passes_memory(settings: &Settings, message: *const libc::msghdr) -> bool {
    // SAFETY: the caller passes a valid header, whose control data the macros walk within its length.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while let Some(part) = header.as_ref() {
            if part.cmsg_level == libc::SOL_SOCKET && part.cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(header);
                let bytes = part.cmsg_len.saturating_sub(data.offset_from_unsigned(header.cast()));
                let descriptors = data.cast::<c_int>();
                if (0..bytes / size_of::<c_int>())
                    .any(|index| settings.is_memory(descriptors.add(index).read_unaligned()))
                {
                    return true;
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    false
}

/// Whether a request of `ioctl(2)` pins memory of the region for a device.
///
/// # Safety
/// `argument` is what the kernel takes for this request.
pub unsafe fn pins_memory(request: c_ulong, argument: *const c_void) -> bool {
    // The kernel looks at these 32 bits alone. SAFETY: the two requests take these structures.
    let (address, bytes) = unsafe {
        match request as u32 {
            VFIO_IOMMU_MAP_DMA => {
                let map = argument.cast::<VfioMap>().read_unaligned();
                (map.vaddr, map.size)
            }
            IOMMU_IOAS_MAP => {
                let map = argument.cast::<IommufdMap>().read_unaligned();
                (map.user_va, map.length)
            }
            _ => return false,
        }
    };
    !mappings::parts(&(address..address.saturating_add(bytes))).is_empty()
}

/// Ends the monitor because it would pass its memory to `whom`.
#[cold]
pub fn refuse(whom: &str) -> ! {
    mappings::end(
        REFUSED,
        format_args!(
            "it would give its memory to {whom}, which sees none of the pages that are away; have QEMU itself serve the device \
         (virtio without vhost-user, no passthrough), or give that device memory of its own"
        ),
    )
}

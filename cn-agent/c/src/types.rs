//! The structures of `include/cxloe.h`, in its order.

use std::ffi::c_char;
use std::time::Duration;

use cxloe_client::mapping::{MapOptions, WAIT_DEFAULT};
use cxloe_cn_core::pager::PagerCounters;
use cxloe_port::inline::InlineOptions;

/// `struct cxloe_error`: a text with a terminating zero.
#[repr(C)]
pub struct ErrorText([u8; 512]);

impl ErrorText {
    /// Copies as much of the text as fits, without cutting a character, and a terminating zero.
    pub fn set(&mut self, text: &str) {
        let mut end = text.len().min(self.0.len() - 1);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.0[..end].copy_from_slice(&text.as_bytes()[..end]);
        self.0[end..].fill(0);
    }
}

/// `struct cxloe_options`; the header describes its fields.
#[repr(C)]
pub struct Options {
    pub local: u64,
    pub prefetch: bool,
    pub fresh: bool,
    pub lost_wait_ms: u32,
    pub agent_wait_ms: u32,
    pub agent: *const c_char,
}

impl Default for Options {
    fn default() -> Options {
        let InlineOptions { local, prefetch, fresh, lost_wait } = InlineOptions::default();
        Options {
            local,
            prefetch,
            fresh,
            lost_wait_ms: lost_wait.as_millis() as u32,
            agent_wait_ms: WAIT_DEFAULT.as_millis() as u32,
            agent: std::ptr::null(),
        }
    }
}

impl Options {
    fn lost_wait(&self) -> Duration {
        Duration::from_millis(self.lost_wait_ms.into())
    }

    pub fn inline(&self) -> InlineOptions {
        let Options { local, prefetch, fresh, .. } = *self;
        InlineOptions { local, prefetch, fresh, lost_wait: self.lost_wait() }
    }

    pub fn mapping(&self) -> MapOptions {
        let Options { local, prefetch, fresh, agent_wait_ms, .. } = *self;
        MapOptions {
            limit: local,
            prefetch,
            fresh,
            lost_wait: self.lost_wait(),
            wait: Duration::from_millis(agent_wait_ms.into()),
            ..MapOptions::default()
        }
    }
}

/// `struct cxloe_link`; the header describes its fields.
#[repr(C)]
pub struct Link {
    pub interface_name: *const c_char,
    pub manager: *const c_char,
    pub backend: *const c_char,
}

impl Default for Link {
    fn default() -> Link {
        let none = std::ptr::null();
        Link { interface_name: none, manager: none, backend: c"auto".as_ptr() }
    }
}

/// `struct cxloe_counters`; the header describes its fields.
#[repr(C)]
pub struct Counters {
    faults: u64,
    zero_fills: u64,
    fetched: u64,
    prefetched: u64,
    prefetch_hits: u64,
    evicted: u64,
    refaulted: u64,
    written_back: u64,
    lines_written_back: u64,
    resident: u64,
}

impl Counters {
    pub fn new(counters: &PagerCounters, resident: u64) -> Counters {
        Counters {
            faults: counters.faults,
            zero_fills: counters.zero_fills,
            fetched: counters.fetched,
            prefetched: counters.prefetched,
            prefetch_hits: counters.prefetch_hits,
            evicted: counters.evicted,
            refaulted: counters.refaulted,
            written_back: counters.written_back,
            lines_written_back: counters.lines_written_back,
            resident,
        }
    }
}

//! A device's count of PFC frames received, which its driver keeps as one of its statistics. The data path sees no PFC
//! frames, because cards consume them.

use super::device;
use super::plugin::Plugin;
use crate::LinkError;
use crate::pfc_statistic::{Counting, Found};

/// Drivers that count received PFC frames, and the name of the statistic, with `{}` for the class.
const PFC_COUNTERS: &[(&str, &str)] = &[
    ("net_i40e", "rx_priority{}_xoff_packets"),
    ("net_ixgbe", "rx_priority{}_xoff_packets"),
    ("net_bnxt", "rx_pfc_ena_frames_pri{}"),
    ("net_cxgbe", "rx_ppp_pri{}_packets"),
    ("net_hns3", "mac_rx_pfc_pri{}_pkt_num"),
    ("net_hinic", "mac_rx_pfc_pri{}_pkt_num"),
    ("net_qede", "rx_priority_flow_control_frames"),
];

/// Statistic of a device of DPDK that is read repeatedly.
pub struct DeviceCounter {
    plugin: &'static Plugin,
    interface: String,
    port: u16,
    name: String,
    place: u32,
}

/// Finds the device's counter of PFC frames received for `class`: the statistic called `name`, in which `{}` stands
/// for the class, or, if `name` is `None`, the one in the table of known drivers.
///
/// # Errors
/// [`LinkError::Unsupported`] if there is no such counter, or no such device.
pub fn pfc_counter(interface: &str, class: u8, name: Option<&str>) -> Result<DeviceCounter, LinkError> {
    let device = device::find(interface, 1)?;
    let (plugin, port, driver) = (device.plugin(), device.port, device.info.driver());
    let counting = Counting {
        interface,
        driver: &driver,
        known: PFC_COUNTERS,
        listed_by: "`--pfc-counter pause` names some that it has",
    };
    let Found { name, index, .. } = counting.find(class, name, || Ok(plugin.statistics(port)))?;
    Ok(DeviceCounter { plugin, interface: interface.to_owned(), port, name, place: index as u32 })
}

impl DeviceCounter {
    /// Name of the statistic that this counter reads.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads the counter; may take milliseconds.
    ///
    /// # Errors
    /// [`LinkError::Unsupported`] if the driver does not report the statistic any more.
    pub fn read(&mut self) -> Result<u64, LinkError> {
        self.plugin.statistic(self.port, self.place).map_err(|why| LinkError::Unsupported {
            backend: "counting PFC frames",
            interface: self.interface.clone(),
            why,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_driver_counts_each_class_or_all_of_them() {
        let find = |driver: &str, names: &[&str]| {
            let counting =
                Counting { interface: "dpdk:x", driver, known: PFC_COUNTERS, listed_by: "see there" };
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            counting.find(3, None, || Ok(names)).map(|found| found.name).ok()
        };
        let names = ["rx_good_packets", "rx_priority3_xon_packets", "rx_priority3_xoff_packets"];
        assert_eq!(find("net_i40e", &names).as_deref(), Some("rx_priority3_xoff_packets"));
        let all = ["rx_good_packets", "rx_priority_flow_control_frames"];
        assert_eq!(find("net_qede", &all).as_deref(), Some("rx_priority_flow_control_frames"));
        assert_eq!((find("net_memif", &names), find("net_i40e", &all)), (None, None));
    }
}

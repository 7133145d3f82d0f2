//! Search among a driver's statistics for the one that counts PFC frames received: the one known for the driver, or
//! one that the operator names.

use super::LinkError;

/// Parts of the names of statistics that count pause frames.
const SIMILAR: [&str; 5] = ["pause", "pfc", "xoff", "ppp", "flow_control"];

/// Driver that may count PFC frames.
pub(crate) struct Counting<'a> {
    /// Interface whose driver it is, for errors.
    pub interface: &'a str,
    pub driver: &'a str,
    /// Statistics of known drivers, each with the driver's name; `{}` stands for the class.
    pub known: &'a [(&'a str, &'a str)],
    /// Way in which the operator can find a statistic's name, for the error of a driver that is not known.
    pub listed_by: &'a str,
}

/// Statistic found, with the number of all statistics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub name: String,
    /// Place among the driver's statistics.
    pub index: usize,
    pub count: usize,
}

impl Counting<'_> {
    /// Finds the statistic for `class`: the one called `name`, in which `{}` stands for the class, or else the one known
    /// for the driver, among those that `names` returns.
    ///
    /// # Errors
    /// [`LinkError::Unsupported`] if there is none; the message suggests similar ones. The error of `names`.
    pub fn find(
        &self,
        class: u8,
        name: Option<&str>,
        names: impl FnOnce() -> Result<Vec<String>, LinkError>,
    ) -> Result<Found, LinkError> {
        let driver = self.driver;
        let known = self.known.iter().filter(|(of, _)| *of == driver).map(|(_, name)| *name);
        let wanted: Vec<String> =
            name.into_iter().chain(known.filter(|_| name.is_none())).map(|n| fill(n, class)).collect();
        if wanted.is_empty() {
            let listed_by = self.listed_by;
            let why = format!("nothing is known of driver `{driver}`; name its counter ({listed_by})");
            return Err(self.unsupported(why));
        }
        let names = names()?;
        let found = wanted.iter().find_map(|w| Some((w, names.iter().position(|n| n == w)?)));
        if let Some((name, index)) = found {
            return Ok(Found { name: name.clone(), index, count: names.len() });
        }
        let similar = names.iter().filter(|n| SIMILAR.iter().any(|part| n.contains(part)));
        let similar = similar.take(8).cloned().collect::<Vec<_>>().join(", ");
        Err(self.unsupported(format!(
            "driver `{driver}` has no statistic `{}`{}",
            wanted.join("` or `"),
            if similar.is_empty() { String::new() } else { format!("; perhaps one of these: {similar}") }
        )))
    }

    fn unsupported(&self, why: String) -> LinkError {
        LinkError::Unsupported { backend: "counting PFC frames", interface: self.interface.to_owned(), why }
    }
}

fn fill(name: &str, class: u8) -> String {
    name.replace("{}", &class.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [(&str, &str); 3] = [("a", "rx_{}_first"), ("a", "rx_{}_second"), ("b", "rx_pfc_frames")];

    fn find(driver: &str, name: Option<&str>) -> Result<Found, String> {
        let names = || Ok(["rx_bytes", "rx_3_second", "rx_pfc_frames", "rx_pause"].map(str::to_owned).into());
        let counting = Counting { interface: "eth9", driver, known: &KNOWN, listed_by: "see there" };
        counting.find(3, name, names).map_err(|error| error.to_string())
    }

    #[test]
    fn the_known_statistic_is_found_unless_another_is_named() {
        let found = |name: &str, index| Ok(Found { name: name.into(), index, count: 4 });
        assert_eq!(find("a", None), found("rx_3_second", 1));
        assert_eq!(find("b", None), found("rx_pfc_frames", 2));
        assert_eq!(find("a", Some("rx_pause")), found("rx_pause", 3));
    }

    #[test]
    fn what_is_not_there_is_named_with_what_is_similar() {
        let unknown = find("c", None).unwrap_err();
        assert!(unknown.contains("driver `c`; name its counter (see there)"), "{unknown}");
        let absent = find("a", Some("rx_{}_pause")).unwrap_err();
        let similar = "no statistic `rx_3_pause`; perhaps one of these: rx_pfc_frames, rx_pause";
        assert!(absent.contains(similar), "{absent}");
    }

    #[test]
    fn the_class_takes_its_place_in_a_name() {
        assert_eq!(fill("rx_prio{}_pause", 3), "rx_prio3_pause");
        assert_eq!(fill("rx_pfc_frames", 3), "rx_pfc_frames");
    }
}

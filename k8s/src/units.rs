//! Units of GPU memory, which kubelet calls devices, and the choice of units for a container.

use crate::api::Choice;
use gpulimit_base::device::DeviceId;
use std::collections::BTreeMap;
use std::fmt;

/// A unit of a card's memory: an amount of memory, not certain addresses. A card is a GPU or a MIG
/// instance.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Hash, Ord, PartialOrd)]
pub struct Unit {
    /// The GPU or MIG instance.
    pub card: DeviceId,
    /// The number of the unit on its card, from 0.
    pub number: u32,
}

impl fmt::Display for Unit {
    /// The id of the unit: `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx::17`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}::{}", self.card, self.number)
    }
}

impl Unit {
    /// Parses the id of a unit. Accepts exactly the form that `fmt` writes.
    pub fn read(id: &str) -> Option<Self> {
        let (card, number) = id.split_once("::")?;
        let unit = Self {
            card: card.parse().ok()?,
            number: number.parse().ok()?,
        };
        (unit.to_string() == id).then_some(unit)
    }
}

/// Why the units in a request cannot be given to a container.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Wrong {
    /// The request is not valid.
    Invalid(String),
    /// No single card has the units.
    Full(String),
}

fn no_units() -> Wrong {
    Wrong::Invalid("the request has no units".into())
}

/// The units of one container, all on one GPU or MIG instance.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Share {
    /// The GPU or MIG instance that all these units belong to.
    pub card: DeviceId,
    /// The numbers of the units on the card, sorted.
    pub numbers: Vec<u32>,
}

impl Share {
    /// Parses the ids of a container's units.
    pub fn of(ids: &[String]) -> Result<Self, Wrong> {
        let mut cards = sorted(ids)?;
        match cards.len() {
            0 | 1 => {
                let (card, numbers) = cards.pop_first().ok_or_else(no_units)?;
                Ok(Self { card, numbers })
            }
            _ => {
                let cards = cards.iter();
                let cards = cards.map(|(card, numbers)| format!("{card} ({})", numbers.len()));
                let cards = cards.collect::<Vec<_>>().join(" and ");
                Err(Wrong::Full(format!(
                    "a container's memory must be on one GPU, but the units are on {cards}"
                )))
            }
        }
    }

    /// Returns the units.
    pub fn units(&self) -> impl Iterator<Item = Unit> + '_ {
        self.numbers.iter().map(|number| Unit {
            card: self.card,
            number: *number,
        })
    }
}

/// Groups the units by card, with sorted numbers.
fn sorted(ids: &[String]) -> Result<BTreeMap<DeviceId, Vec<u32>>, Wrong> {
    let mut cards: BTreeMap<DeviceId, Vec<u32>> = BTreeMap::new();
    for id in ids {
        let unit = Unit::read(id).ok_or_else(|| {
            Wrong::Invalid(format!(
                "'{}' is not a unit of this plugin",
                id.escape_debug()
            ))
        })?;
        let numbers = cards.entry(unit.card).or_default();
        match numbers.binary_search(&unit.number) {
            Ok(_) => return Err(Wrong::Invalid(format!("the request has unit {unit} twice"))),
            Err(at) => numbers.insert(at, unit.number),
        }
    }
    Ok(cards)
}

/// Chooses units for a container, all on one card. Among the cards with room, takes the card with
/// the fewest free units.
pub fn prefer(choice: &Choice) -> Result<Vec<Unit>, Wrong> {
    let wanted = usize::try_from(choice.size).unwrap_or(0);
    if wanted == 0 {
        return Err(no_units());
    }
    let must = match choice.must_include.is_empty() {
        true => None,
        false => Some(Share::of(&choice.must_include)?),
    };
    let mut cards = sorted(&choice.available)?;
    if let Some(must) = &must {
        cards.retain(|card, _| *card == must.card);
        // Kubelet lists the required units among the available units, too. Do not count them twice.
        let numbers = cards.entry(must.card).or_default();
        numbers.retain(|number| !must.numbers.contains(number));
    }
    let had = must.as_ref().map_or(0, |must| must.numbers.len());
    let needed = wanted.saturating_sub(had);
    let fits = cards.iter().filter(|(_, numbers)| numbers.len() >= needed);
    let Some((card, numbers)) = fits.min_by_key(|(_, numbers)| numbers.len()) else {
        let largest = cards.iter().max_by_key(|(_, numbers)| numbers.len());
        let largest = largest.map_or(String::new(), |(card, numbers)| {
            format!("; {card} has the most units left: {}", numbers.len() + had)
        });
        let why = format!("no GPU of this node has {wanted} units left{largest}");
        return Err(Wrong::Full(why));
    };
    let had = must.map(|must| must.numbers).unwrap_or_default();
    let numbers = had.into_iter().chain(numbers.iter().copied().take(needed));
    Ok(numbers
        .map(|number| Unit {
            card: *card,
            number,
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::LONGEST_ID;

    fn card(number: u8) -> DeviceId {
        DeviceId::gpu([number; 16])
    }

    fn ids(card_number: u8, numbers: impl IntoIterator<Item = u32>) -> Vec<String> {
        let unit = |number| Unit {
            card: card(card_number),
            number,
        };
        numbers.into_iter().map(|n| unit(n).to_string()).collect()
    }

    fn choose(available: &[Vec<String>], must: Vec<String>, size: i32) -> Result<Share, Wrong> {
        let chosen = prefer(&Choice {
            available: available.concat(),
            must_include: must,
            size,
        })?;
        Share::of(&chosen.iter().map(Unit::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn ids_parse_back_and_fit_into_the_protocol() {
        for card in [card(7), DeviceId::mig([9; 16])] {
            let number = u32::MAX;
            let id = Unit { card, number }.to_string();
            assert_eq!(Unit::read(&id), Some(Unit { card, number }));
            assert!(id.len() <= LONGEST_ID, "{id}");
        }
        let good = &ids(0xab, [3])[0];
        for bad in [
            "",
            "::",
            "gpu::1",
            &good.replace("::", ":"),
            &good.replace("::3", "::03"),
            &good.replace("::3", "::+3"),
            &good.replace("::3", "::-3"),
            &good.replace("::3", "::4294967296"),
            &good.to_ascii_uppercase(),
            &format!("{good} "),
            &format!("{good}::1"),
        ] {
            assert_eq!(Unit::read(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_share_is_on_one_card() {
        let share = Share::of(&ids(1, [5, 2, 9])).expect("a share");
        assert_eq!((share.card, share.numbers), (card(1), vec![2, 5, 9]));
        assert_eq!(Share::of(&[]), Err(no_units()));
        let two = [ids(1, [0, 1]), ids(2, [0])].concat();
        let why = format!(
            "a container's memory must be on one GPU, but the units are on {} (2) and {} (1)",
            card(1),
            card(2)
        );
        assert_eq!(Share::of(&two), Err(Wrong::Full(why)));
        let twice = Unit {
            card: card(1),
            number: 4,
        };
        let why = format!("the request has unit {twice} twice");
        assert_eq!(Share::of(&ids(1, [4, 4])), Err(Wrong::Invalid(why)));
    }

    #[test]
    fn the_card_with_the_fewest_free_units_is_chosen() {
        let free = [ids(1, 0..40), ids(2, 70..80), ids(3, 0..20)];
        for (size, best) in [(1, 2), (10, 2), (11, 3), (20, 3), (21, 1), (40, 1)] {
            let share = choose(&free, Vec::new(), size).expect("fits");
            assert_eq!(share.card, card(best), "{size}");
            assert_eq!(share.numbers.len(), size as usize);
        }
        let full = |wanted, largest: &str| {
            let why = format!("no GPU of this node has {wanted} units left{largest}");
            Err(Wrong::Full(why))
        };
        let largest = format!("; {} has the most units left: 40", card(1));
        assert_eq!(choose(&free, Vec::new(), 41), full(41, &largest));
        assert_eq!(choose(&[], Vec::new(), 1), full(1, ""));
        for size in [0, -1, i32::MIN] {
            assert_eq!(choose(&free, Vec::new(), size), Err(no_units()));
        }
    }

    #[test]
    fn units_of_the_init_container_are_kept() {
        let free = [ids(1, 0..10), ids(2, 0..30)];
        let share = choose(&free, ids(2, 3..7), 8).expect("fits");
        assert_eq!(share.card, card(2));
        assert!((3..7).all(|number| share.numbers.contains(&number)));
        assert_eq!(share.numbers.len(), 8);
        // First choose only the required units. Then request more units than the card has.
        assert_eq!(
            choose(&free, ids(1, 0..4), 4).expect("fits").numbers,
            [0, 1, 2, 3]
        );
        let why = format!(
            "no GPU of this node has 11 units left; {} has the most units left: 10",
            card(1)
        );
        assert_eq!(choose(&free, ids(1, 0..4), 11), Err(Wrong::Full(why)));
    }
}

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
    /// The list is empty.
    None,
    /// This text in the request is not the id of a unit.
    Id(String),
    /// This unit is in the request twice.
    Twice(Unit),
    /// The units are on more than one card. Contains these cards, each with its number of requested
    /// units.
    Cards(Vec<(DeviceId, usize)>),
    /// No card has as many free units as the container needs.
    Pieces {
        /// The number of units that the container needs.
        wanted: usize,
        /// The card with the most free units, and the number of its free units. `None` if no card
        /// has free units.
        largest: Option<(DeviceId, usize)>,
    },
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("the request has no units"),
            Self::Id(id) => write!(f, "'{}' is not a unit of this plugin", id.escape_debug()),
            Self::Twice(unit) => write!(f, "the request has unit {unit} twice"),
            Self::Cards(cards) => {
                f.write_str("a container's memory must be on one GPU, but the units are on ")?;
                for (at, (card, count)) in cards.iter().enumerate() {
                    write!(f, "{}{card} ({count})", if at == 0 { "" } else { " and " })?;
                }
                Ok(())
            }
            Self::Pieces { wanted, largest } => {
                write!(f, "no GPU of this node has {wanted} units left")?;
                match largest {
                    Some((card, left)) => write!(f, "; {card} has the most units left: {left}"),
                    None => Ok(()),
                }
            }
        }
    }
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
            0 => Err(Wrong::None),
            1 => {
                let (card, numbers) = cards.pop_first().ok_or(Wrong::None)?;
                Ok(Self { card, numbers })
            }
            _ => {
                let counts = cards.iter().map(|(card, numbers)| (*card, numbers.len()));
                Err(Wrong::Cards(counts.collect()))
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
        let unit = Unit::read(id).ok_or_else(|| Wrong::Id(id.clone()))?;
        let numbers = cards.entry(unit.card).or_default();
        match numbers.binary_search(&unit.number) {
            Ok(_) => return Err(Wrong::Twice(unit)),
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
        return Err(Wrong::None);
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
        let largest = cards
            .iter()
            .map(|(card, numbers)| (*card, numbers.len() + had))
            .max_by_key(|(_, left)| *left);
        return Err(Wrong::Pieces { wanted, largest });
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
        assert_eq!(Share::of(&[]), Err(Wrong::None));
        let two = [ids(1, [0, 1]), ids(2, [0])].concat();
        let wrong = Wrong::Cards(vec![(card(1), 2), (card(2), 1)]);
        assert_eq!(Share::of(&two), Err(wrong));
        let twice = Unit {
            card: card(1),
            number: 4,
        };
        assert_eq!(Share::of(&ids(1, [4, 4])), Err(Wrong::Twice(twice)));
    }

    #[test]
    fn the_card_with_the_fewest_free_units_is_chosen() {
        let free = [ids(1, 0..40), ids(2, 70..80), ids(3, 0..20)];
        for (size, best) in [(1, 2), (10, 2), (11, 3), (20, 3), (21, 1), (40, 1)] {
            let share = choose(&free, Vec::new(), size).expect("fits");
            assert_eq!(share.card, card(best), "{size}");
            assert_eq!(share.numbers.len(), size as usize);
        }
        let largest = Some((card(1), 40));
        let wanted = 41;
        let wrong = Wrong::Pieces { wanted, largest };
        assert_eq!(choose(&free, Vec::new(), 41), Err(wrong));
        let (wanted, largest) = (1, None);
        let wrong = Wrong::Pieces { wanted, largest };
        assert_eq!(choose(&[], Vec::new(), 1), Err(wrong));
        for size in [0, -1, i32::MIN] {
            assert_eq!(choose(&free, Vec::new(), size), Err(Wrong::None));
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
        let wanted = 11;
        let largest = Some((card(1), 10));
        let wrong = Wrong::Pieces { wanted, largest };
        assert_eq!(choose(&free, ids(1, 0..4), 11), Err(wrong));
    }
}

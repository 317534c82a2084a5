//! Who gets how many rows of the next step.

use model::Shape;

use crate::auto::Choice;
use crate::shape::{Kind, fit, lower};

/// How a sequence wants to take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Without drafts.
    Plain,
    /// In the shape that its request asked for.
    Own(Shape),
    /// As the engine chooses.
    Common,
}

/// A sequence of the next step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seat {
    pub(crate) wish: Wish,
    /// Rows that its pages hold.
    pub(crate) rows_left: usize,
}

/// What a step holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepLimits {
    /// Rows of all sequences.
    pub(crate) rows: usize,
    /// Rows of one.
    pub(crate) sequence_rows: usize,
    /// Whether sequences share rows where several draft.
    pub(crate) share: bool,
}

/// How a sequence takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Its shape in metrics: the average one where rows are shared.
    pub(crate) shape: Shape,
    /// The shape that it is given.
    pub(crate) given: Shape,
    /// [`model::SequenceStep::rows_max`].
    pub(crate) rows_max: Option<usize>,
}

impl Part {
    fn alone(shape: Shape) -> Self {
        Part {
            shape,
            given: shape,
            rows_max: None,
        }
    }

    /// The shape that was verified, of which the device says how many nodes it has.
    pub(crate) fn verified(&self, drafted: usize) -> Shape {
        match self.rows_max {
            None => self.given,
            Some(_) => Kind::of(self.given).shape(drafted),
        }
    }
}

/// The parts of a step whose common choice is `choice`. Never more rows than the step holds, nor
/// for a sequence than its pages do.
pub(crate) fn parts(seats: &[Seat], choice: Choice, limits: StepLimits) -> Vec<Part> {
    let common = seats.iter().filter(|seat| seat.wish == Wish::Common);
    let common = common.count();
    let shares = limits.share && common > 1 && choice.shape != Shape::Plain;
    let shapes = seats.iter().map(|seat| match seat.wish {
        Wish::Own(shape) => lower(shape, seat.rows_left),
        Wish::Common if !shares => lower(choice.shape, seat.rows_left),
        Wish::Plain | Wish::Common => Shape::Plain,
    });
    let mut shapes: Vec<Shape> = shapes.collect();
    fit(&mut shapes, limits.rows);
    let mut parts: Vec<Part> = shapes.into_iter().map(Part::alone).collect();
    if !shares {
        return parts;
    }
    let taken: usize = parts.iter().map(|part| part.given.rows()).sum();
    let pool = choice.rows.min(limits.rows - taken + common);
    if pool <= common {
        return parts;
    }
    let (each, mut more) = (pool / common, pool % common);
    for (part, seat) in parts.iter_mut().zip(seats) {
        if seat.wish != Wish::Common {
            continue;
        }
        let drafts = each - 1 + usize::from(more > 0);
        more = more.saturating_sub(1);
        *part = Part {
            shape: Kind::of(choice.shape).shape(each - 1),
            given: Kind::of(choice.shape).shape(drafts),
            rows_max: Some(seat.rows_left.min(limits.sequence_rows).max(1)),
        };
    }
    parts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: StepLimits = StepLimits {
        rows: 512,
        sequence_rows: 64,
        share: true,
    };

    fn seat(wish: Wish) -> Seat {
        Seat {
            wish,
            rows_left: 100,
        }
    }

    #[test]
    fn common_rows_are_shared_and_own_shapes_kept() {
        let seats = [
            seat(Wish::Common),
            seat(Wish::Plain),
            seat(Wish::Own(Shape::Chain(5))),
            Seat {
                wish: Wish::Common,
                rows_left: 9,
            },
        ];
        let choice = Choice {
            shape: Shape::Tree(11),
            rows: 25,
        };
        let shared = |given, rows_max| Part {
            shape: Shape::Tree(11),
            given,
            rows_max: Some(rows_max),
        };
        let expected = [
            shared(Shape::Tree(12), 64),
            Part::alone(Shape::Plain),
            Part::alone(Shape::Chain(5)),
            shared(Shape::Tree(11), 9),
        ];
        assert_eq!(parts(&seats, choice, LIMITS), expected);
        // Alone, or where that is off, everybody gets the shape itself.
        let uniform = Choice::uniform(Shape::Tree(15), 2);
        let off = StepLimits {
            share: false,
            ..LIMITS
        };
        let alone = |wishes: &[Seat], limits| {
            let parts = parts(wishes, uniform, limits);
            assert!(parts.iter().all(|part| part.rows_max.is_none()));
            parts.iter().map(|part| part.given).collect::<Vec<_>>()
        };
        assert_eq!(alone(&seats[..1], LIMITS), [Shape::Tree(15)]);
        let lowered = [
            Shape::Tree(15),
            Shape::Plain,
            Shape::Chain(5),
            Shape::Tree(7),
        ];
        assert_eq!(alone(&seats, off), lowered);
    }

    #[test]
    fn a_full_step_shares_all_of_its_rows() {
        let seats = [seat(Wish::Common); 9];
        let choice = Choice::uniform(Shape::Tree(63), 9);
        let rows = |parts: &[Part]| parts.iter().map(|part| part.given.rows()).sum::<usize>();
        assert_eq!(rows(&parts(&seats, choice, LIMITS)), 512);
        // Without room for a draft nobody drafts.
        let seats = [seat(Wish::Common); 512];
        let choice = Choice::uniform(Shape::Chain(3), 512);
        let plain = [Part::alone(Shape::Plain); 512];
        assert_eq!(parts(&seats, choice, LIMITS), plain);
    }

    #[test]
    fn what_was_verified_has_the_nodes_that_the_device_dealt() {
        let mut part = Part::alone(Shape::Tree(15));
        assert_eq!(part.verified(9), Shape::Tree(15));
        part.rows_max = Some(64);
        assert_eq!(part.verified(9), Shape::Tree(9));
    }

    fn wishes() -> impl Strategy<Value = Seat> {
        let wish = prop_oneof![
            Just(Wish::Plain),
            (1usize..=63).prop_map(|nodes| Wish::Own(Shape::Tree(nodes))),
            Just(Wish::Common),
            Just(Wish::Common),
        ];
        (wish, 1usize..200).prop_map(|(wish, rows_left)| Seat { wish, rows_left })
    }

    proptest! {
        #[test]
        fn no_step_is_too_large(
            seats in prop::collection::vec(wishes(), 1..=512),
            drafts in 1usize..=63,
            chain: bool,
            more in 0usize..64,
            share: bool,
        ) {
            let shape = if chain { Shape::Chain(drafts.min(15)) } else { Shape::Tree(drafts) };
            let common = seats.iter().filter(|seat| seat.wish == Wish::Common).count();
            let choice = Choice { shape, rows: shape.rows() * common + more.min(common) };
            let parts = parts(&seats, choice, StepLimits { share, ..LIMITS });
            prop_assert_eq!(parts.len(), seats.len());
            let rows: usize = parts.iter().map(|part| part.given.rows()).sum();
            prop_assert!(rows <= 512);
            for (part, seat) in parts.iter().zip(&seats) {
                match part.rows_max {
                    None => prop_assert!(part.given.rows() <= seat.rows_left),
                    Some(most) => {
                        prop_assert!(share && seat.wish == Wish::Common);
                        prop_assert!((1..=seat.rows_left.min(64)).contains(&most));
                        prop_assert!(part.given.rows() <= 65);
                    }
                }
                prop_assert!(seat.wish != Wish::Plain || part.given == Shape::Plain);
            }
        }
    }
}

"""Kinds of problems about counting things. See draw.py; each function is one kind."""

from draw import add, div, mul, sub


def chain(d):
    """Two to four things happen to what somebody has."""
    p, x = d.person(), d.anything()
    have = d.n(10, 60)
    opening = d.pick([f"{p} has {have} {x}.", f"{p} starts with {have} {x}.", f"At first {p} has {have} {x}.",
                      f"There are {have} {x} in {p.his} {d.w('bag|box|drawer|basket')}."])
    sentences, steps, now = [], [], have
    for i in range(d.n(2, 4)):
        then = "Then " + p.he if i and d.rng.random() < 0.4 else p.He
        what = d.pick(("more", "more", "less", "less", "double", "half"))
        if what == "double" and now <= 60:
            sentences.append(f"{then} {d.w('doubles that number|gets as many again')}.")
            steps.append(f"Doubled, that is {mul(now, 2)} {x}.")
            now *= 2
        elif what == "half" and now % 2 == 0 and now > 3:
            sentences.append(f"{then} {d.w('gives away half of the ' + x + '|sells half of them|gives half of them to a friend')}.")
            steps.append(f"Half of them are {div(now, 2)} {x}.")
            now //= 2
        elif what == "less" and now > 4:
            k = d.n(2, min(now - 2, 30))
            verb = d.w(f"gives {d.c(k)} {x} to a friend|loses {d.c(k)} {x}|gives away {d.c(k)} {x}|sells {d.c(k)} of them|"
                       f"hands {d.c(k)} to {p.his} {d.w('brother|sister|teacher')}")
            sentences.append(f"{then} {verb}.")
            steps.append(f"That leaves {sub(now, k)} {x}.")
            now -= k
        else:
            k = d.n(2, 40)
            verb = d.w(f"buys {d.c(k)} more|finds {d.c(k)} more {x}|gets {d.c(k)} {x} from a friend|receives {d.c(k)} more {x}|"
                       f"is given {d.c(k)} {x}")
            sentences.append(f"{then} {verb}.")
            steps.append(f"That makes {add(now, k)} {x}.")
            now += k
    closing = d.w(f"How many {x} does {p} have now?|How many {x} does {p.he} have in the end?|How many are there now?|"
                  f"How many {x} are there at the end?")
    d.ask(" ".join([opening, *sentences, closing]))
    return steps, now


def more_than(d):
    p, q, x = d.person(), d.person(), d.anything()
    a, b = d.n(5, 90), d.n(3, 60)
    d.ask(
        f"{p} has {a} {x}. {q} has {b} more {x} than {p}. How many {x} do they have {d.w('together|in all|altogether')}?",
        f"{q} collected {b} more {x} than {p}, who collected {a}. How many {x} did both collect?",
        f"There are {a} {x} in the box of {p}. In the box of {q} there are {b} more. How many {x} are in both boxes?",
        f"{p} counted {a} {x}. {q} counted {b} {x} more than that. What is the total number of {x}?",
        unseen=[
            f"If {p} lays {p.his} {a} {x} on the table and {q} adds all of {q.his}, which are {b} more than those of {p}, how "
            f"many {x} lie there?",
        ])
    return [f"{q} has {add(a, b)} {x}.", f"Together they have {add(a, a + b)} {x}."], a + a + b


def fewer_than(d):
    p, q, x = d.person(), d.person(), d.anything()
    a = d.n(20, 99)
    b = d.n(3, min(60, a - 2))
    d.ask(
        f"{p} has {a} {x}. {q} has {b} fewer {x} than {p}. How many {x} do they have {d.w('together|in all|altogether')}?",
        f"{q} picked {b} {x} less than {p}. {p} picked {a} {x}. How many {x} did they pick in total?",
        f"{p} owns {a} {x}, and {q} owns {b} fewer. How many {x} do the two own {d.w('together|altogether')}?",
        f"On {d.day()} {p} sold {a} {x}. {q} sold {b} fewer. How many {x} did the two sell?",
    )
    return [f"{q} has {sub(a, b)} {x}.", f"Together they have {add(a, a - b)} {x}."], a + a - b


def times_as_many(d):
    p, q, x = d.person(), d.person(), d.anything()
    a, k = d.n(3, 30), d.n(2, 6)
    times = {2: d.w("twice|two times"), 3: d.w("three times|3 times")}.get(k, f"{d.c(k)} times")
    d.ask(
        f"{p} has {a} {x}. {q} has {times} as many. How many {x} do they have {d.w('together|in all')}?",
        f"{q} has {times} as many {x} as {p}. {p} has {a} {x}. How many {x} do both have {d.w('together|in total')}?",
        f"{p} found {a} {x}, and {q} found {times} as many {x}. What is the total?",
        f"A shelf of {p} holds {a} {x}. The shelf of {q} holds {times} that number. How many {x} are on both shelves?",
        unseen=[
            f"The {x} of {q} are {times} as many as those of {p}, who counts {a}. Put into one pile, how many would it be?",
        ])
    return [f"{q} has {mul(a, k)} {x}.", f"Together they have {add(a, a * k)} {x}."], a + a * k


def three_people(d):
    p, q, s, x = d.person(), d.person(), d.person(), d.anything()
    a, k, b = d.n(3, 25), d.n(2, 4), d.n(2, 20)
    times = {2: d.w("twice|two times"), 3: "three times"}.get(k, f"{d.c(k)} times")
    d.ask(
        f"{p} has {a} {x}. {q} has {times} as many as {p}. {s} has {b} more than {q}. How many {x} do the three have "
        f"{d.w('together|in all|altogether')}?",
        f"{p} made {a} {x}. {q} made {times} as many, and {s} made {b} more than {q}. How many {x} did they make in total?",
        f"{s} has {b} more {x} than {q}. {q} has {times} as many as {p}, and {p} has {a}. What is the total number of {x}?",
    )
    m = a * k
    return [f"{q} has {mul(a, k)} {x}.", f"{s} has {add(m, b)} {x}.",
            f"Together they have {add(a, m, m + b)} {x}."], a + m + m + b


def share_then_more(d):
    p, x = d.person(), d.anything()
    k, each, extra = d.n(2, 9), d.n(2, 15), d.n(2, 12)
    who = d.w("friends|children|students|neighbors|cousins")
    d.ask(
        f"{p} shares {k * each} {x} equally among {d.c(k)} {who}. Later each of them gets {d.c(extra)} more. How many {x} does "
        f"each have now?",
        f"{d.c(k).capitalize()} {who} divide {k * each} {x} evenly. Then {p} gives each of them another {d.c(extra)}. How many {x} does each "
        f"one have?",
        f"A bag with {k * each} {x} is split equally between {d.c(k)} {who}. After that every one of them receives {d.c(extra)} more "
        f"{x} from {p}. How many {x} does each of the {who} end up with?",
    )
    return [f"Each first gets {div(k * each, k)} {x}.", f"Then each has {add(each, extra)} {x}."], each + extra


def boxes(d):
    p, x = d.person(), d.anything()
    n, k, b = d.n(3, 20), d.n(4, 12), d.n(2, 15)
    b = min(b, n * k - 1)
    box = d.w("box|bag|crate|basket|packet")
    plural = box + ("es" if box == "box" else "s")
    bad = d.w("broken|lost|spoiled|missing|damaged")
    d.ask(
        f"{p} has {n} {plural} with {d.c(k)} {x} each. {b} of the {x} are {bad}. How many good {x} are {d.w('left|there')}?",
        f"There are {n} {plural}. Each {box} holds {d.c(k)} {x}. {p} sees that {b} {x} are {bad}. How many are not {bad}?",
        f"A truck brings {n} {plural} of {x}, {d.c(k)} in every {box}. {p} finds {b} of them {bad}. How many {x} can be used?",
        f"Each {box} contains {d.c(k)} {x}, and {p} opens {n} {plural}. If {b} {x} are {bad}, how many remain?",
        unseen=[
            f"{p} unpacks {n} {plural}; from every single one come {k} {x}. Sadly, {b} turn out to be {bad}. How "
            f"many {x} are fine?",
        ])
    return [f"There are {mul(n, k)} {x}.", f"Without the {bad} ones there are {sub(n * k, b)} {x}."], n * k - b


def packing(d):
    p, x = d.person(), d.anything()
    k, n, start = d.n(3, 12), d.n(3, 15), d.n(2, 20)
    box = d.w("bag|crate|basket|packet|jar")
    total = k * n
    d.ask(
        f"{p} has {total + start} {x} and {d.w('eats|keeps|sets aside')} {start} of them. The rest go into {box}s of {d.c(k)}. How "
        f"many {box}s does {p.he} need?",
        f"Out of {total + start} {x}, {p} gives {start} to a friend. {p.He} packs the others, {d.c(k)} to a {box}. How many {box}s are filled?",
        f"{p} puts {x} into {box}s, {d.c(k)} in each. {p.He} had {total + start} {x} but {start} were taken out first. "
        f"How many {box}s does {p.he} fill?",
        f"Each {box} takes {d.c(k)} {x}. {p} has {total + start} {x}, and {start} of them are not packed. How many {box}s are packed?",
    )
    return [f"There are {sub(total + start, start)} {x} to pack.", f"That fills {div(total, k)} {box}s."], n


def pages(d):
    p = d.person()
    per, days = d.n(5, 30), d.n(2, 9)
    total = per * days + d.n(10, 90)
    d.ask(
        f"A book has {total} pages. {p} reads {per} pages a day for {d.c(days)} days. How many pages are left{d.w('| to read')}?",
        f"{p} is reading a book of {total} pages. Every day {p.he} reads {per} pages. How many pages remain after {d.c(days)} days?",
        f"For {d.c(days)} days {p} has read {per} pages each day. The book has {total} pages. How many pages has {p.he} not read yet?",
        f"{p} reads {per} pages every evening. {p.His} book has {total} pages. After {d.c(days)} evenings, how many pages does {p.he} "
        f"still have to read?",
        unseen=[
            f"There is a thick novel with {total} pages on the desk of {p}. {d.c(days).capitalize()} times {p.he} sits down and gets through {per} "
            f"pages each time. How long is the part that is still ahead of {p.him}, in pages?",
        ])
    return [f"{p} reads {mul(per, days)} pages.", f"There are {sub(total, per * days)} pages left."], total - per * days


def bus(d):
    start = d.n(10, 45)
    off1 = d.n(2, min(start - 1, 15))
    on1 = d.n(2, 20)
    now = start - off1 + on1
    off2 = d.n(2, min(now - 1, 15))
    vehicle = d.w("bus|train|tram|ferry")
    stop = "stop" if vehicle in ("bus", "tram") else "station" if vehicle == "train" else "pier"
    d.ask(
        f"A {vehicle} has {start} {d.w('passengers|people')} on it. At the first {stop}, {off1} get off and {on1} get on. At the next "
        f"{stop}, {off2} get off. How many people are on the {vehicle} now?",
        f"There are {start} people on a {vehicle}. {off1} people leave at one {stop} and {on1} others come in. Later {off2} more "
        f"leave. How many people are still on the {vehicle}?",
        f"A {vehicle} leaves with {start} passengers. First {off1} get off and {on1} get on, then {off2} get off. How many passengers remain?",
    )
    return [f"After {off1} get off there are {sub(start, off1)} people.", f"After {on1} get on there are {add(start - off1, on1)} people.",
            f"After {off2} get off there are {sub(now, off2)} people."], now - off2


def seats(d):
    place = d.w("theater|cinema|hall|classroom|stadium")
    rows, k = d.n(4, 25), d.n(4, 12)
    empty = d.n(2, min(40, rows * k - 2))
    d.ask(
        f"A {place} has {rows} rows of {d.c(k)} seats. {empty} seats are empty. How many {d.w('people are sitting|seats are taken')}?",
        f"There are {rows} rows in the {place} and {d.c(k)} seats in each row. If {empty} seats are free, how many seats are taken?",
        f"In a {place} every row has {d.c(k)} seats, and there are {rows} rows. All but {empty} seats are full. How many people are in the seats?",
        f"The {place} is set up with {rows} rows, {d.c(k)} chairs in each. {empty} chairs stay empty. How many chairs are used?",
    )
    return [f"There are {mul(rows, k)} seats.", f"Of these {sub(rows * k, empty)} are taken."], rows * k - empty


def garden(d):
    p, x, y = d.person(), d.flower(), d.flower()
    a, k, b, m = d.n(2, 12), d.n(3, 12), d.n(2, 12), d.n(3, 12)
    d.ask(
        f"{p} plants {d.c(a)} rows of {x} with {d.c(k)} in each row and {d.c(b)} rows of {y} with {d.c(m)} in each row. How many flowers "
        f"does {p.he} plant {d.w('in all|in total|altogether')}?",
        f"In the garden of {p} there are {d.c(a)} rows of {d.c(k)} {x} and {d.c(b)} rows of {d.c(m)} {y}. How many flowers are in the garden?",
        f"{p} has two flower beds. One has {d.c(a)} rows of {x}, {d.c(k)} per row. The other has {d.c(b)} rows of {y}, {d.c(m)} per row. "
        f"What is the total number of flowers?",
    )
    return [f"There are {mul(a, k)} {x}.", f"There are {mul(b, m)} {y}.",
            f"In all there are {add(a * k, b * m)} flowers."], a * k + b * m


def legs(d):
    p = d.person()
    birds = d.pick(["chickens", "ducks", "geese", "turkeys"])
    beasts = d.pick(["cows", "sheep", "goats", "pigs", "horses", "rabbits"])
    a, b = d.n(3, 30), d.n(3, 30)
    d.ask(
        f"A farm has {a} {birds} and {b} {beasts}. How many legs do {d.w('the animals|they')} have {d.w('in all|altogether')}?",
        f"{p} keeps {a} {birds} and {b} {beasts}. How many legs do all the animals have?",
        f"In a field there are {b} {beasts} and {a} {birds}. What is the total number of legs?",
        f"{p} counts the legs of {a} {birds} and {b} {beasts}. How many legs does {p.he} count?",
    )
    return [f"The {birds} have {mul(a, 2)} legs.", f"The {beasts} have {mul(b, 4)} legs.",
            f"In all that is {add(a * 2, b * 4)} legs."], a * 2 + b * 4


def give_to_friends(d):
    p, x = d.person(), d.anything()
    k, m = d.n(2, 9), d.n(2, 9)
    have = k * m + d.n(3, 60)
    d.ask(
        f"{p} has {have} {x}. {p.He} gives {d.c(k)} {x} to each of {d.c(m)} friends. How many {x} {d.w('are left|does ' + p.he + ' have left')}?",
        f"{p} wants to give {d.c(k)} {x} each to {d.c(m)} {d.w('cousins|friends|classmates')}. {p.He} has {have} {x}. How many will be left over?",
        f"From {p.his} {have} {x}, {p} hands {d.c(k)} to every one of {d.c(m)} children. How many {x} remain?",
        f"{d.c(m).capitalize()} friends get {d.c(k)} {x} each from {p}, who had {have}. How many {x} does {p} keep?",
        unseen=[
            f"{m} guests come to the party of {p}, and every guest goes home with {k} {x}. Before the party {p} counted {have} {x}. What "
            f"would {p.he} count after it?",
        ])
    return [f"{p} gives away {mul(k, m)} {x}.", f"{p.He} has {sub(have, k * m)} {x} left."], have - k * m


def score(d):
    p = d.person()
    a, b, c = d.n(2, 12), d.n(2, 12), d.n(2, 12)
    d.ask(
        f"In a basketball game {p} makes {d.c(a)} shots worth 2 points, {d.c(b)} shots worth 3 points and {d.c(c)} shots worth 1 point. How many "
        f"points does {p.he} score?",
        f"{p} scored {d.c(a)} two-point shots, {d.c(b)} three-point shots and {d.c(c)} free throws of 1 point. How many points is that "
        f"{d.w('in all|in total|altogether')}?",
        f"A shot counts 2 points, a long shot counts 3 points, and a free throw counts 1 point. {p} makes {d.c(a)} shots, {d.c(b)} long shots and {d.c(c)} "
        f"free throws. What is {p.his} score?",
    )
    return [f"The shots of 2 points give {mul(a, 2)} points.", f"The shots of 3 points give {mul(b, 3)} points.",
            f"In all that is {add(a * 2, b * 3, c)} points."], a * 2 + b * 3 + c


def game_score(d):
    p = d.person()
    good, u, bad, v = d.n(5, 20), d.n(3, 10), d.n(2, 6), d.n(1, 3)
    d.ask(
        f"In a quiz each right answer gives {u} points and each wrong answer takes away {d.c(v)} {'point' if v == 1 else 'points'}. {p} has {good} right and {d.c(bad)} wrong "
        f"answers. What is {p.his} score?",
        f"{p} answers {good} questions correctly and {d.c(bad)} wrongly. A correct answer is worth {u} points, and {d.c(v)} "
        f"{'point is' if v == 1 else 'points are'} lost for a wrong one. How many points does {p.he} get?",
        f"A game gives {u} points for a hit and takes {d.c(v)} for a miss. {p} hits {good} times and misses {d.c(bad)} times. How many points does {p.he} have?",
    )
    return [f"{p} wins {mul(good, u)} points.", f"{p.He} loses {mul(bad, v)} points.",
            f"{p.His} score is {sub(good * u, bad * v)} points."], good * u - bad * v


def who_made_more(d):
    p, q, x = d.person(), d.person(), d.anything()
    a, k, b, m = d.n(5, 15), d.n(5, 12), d.n(2, 9), d.n(2, 6)
    if a * k <= b * m:
        a, k, b, m = b + 3, m + 3, b, m
    unit = d.w("day|hour|week")
    d.ask(
        f"{p} makes {a} {x} a {unit} for {d.c(k)} {unit}s. {q} makes {d.c(b)} {x} a {unit} for {d.c(m)} {unit}s. How many more {x} does {p} make than {q}?",
        f"In {d.c(k)} {unit}s {p} sells {a} {x} each {unit}. In {d.c(m)} {unit}s {q} sells {d.c(b)} {x} each {unit}. How many more does {p} sell?",
        f"{p} packs {a} {x} every {unit} and works {d.c(k)} {unit}s. {q} packs {d.c(b)} every {unit} and works {d.c(m)} {unit}s. What is the "
        f"difference between their numbers of {x}?",
    )
    return [f"{p} has {mul(a, k)} {x}.", f"{q} has {mul(b, m)} {x}.",
            f"The difference is {sub(a * k, b * m)} {x}."], a * k - b * m


def fraction_rest(d):
    p, x = d.person(), d.anything()
    k, each, y = d.n(2, 6), d.n(3, 20), 0
    total = k * each
    y = d.n(1, total - each - 1)
    part = {2: "half", 3: "a third", 4: "a quarter", 5: "a fifth", 6: "a sixth"}[k]
    d.ask(
        f"{p} has {total} {x}. {p.He} gives {part} of them to {p.his} {d.w('brother|sister|friend')} and loses {y}. How many {x} "
        f"{d.w('are left|does ' + p.he + ' have left')}?",
        f"Of {total} {x}, {part} are sold in the morning and {y} in the afternoon. How many {x} are left?",
        f"{p} used {part} of {p.his} {total} {x} on {d.day()} and {y} more the day after. How many remain?",
        f"A basket holds {total} {x}. {p} takes {part} of the {x} out, and then {y} more. How many are still in the basket?",
        unseen=[
            f"Once there were {total} {x}. Then {part} of them went to a neighbor of {p}, and {y} fell into the river. How many could "
            f"{p} still find?",
        ])
    rest = total - each
    return [f"{part.capitalize()} of them is {div(total, k)} {x}.", f"Then there are {sub(total, each)} {x}.",
            f"In the end there are {sub(rest, y)} {x}."], rest - y


def class_split(d):
    k, each, extra = d.n(2, 5), d.n(3, 12), d.n(2, 15)
    total = k * each
    part = {2: "Half", 3: "One third", 4: "One quarter", 5: "One fifth"}[k]
    club = d.w("chess|music|sports|art|drama|science")
    d.ask(
        f"There are {total} students in a class. {part} of them {d.w('join|go to')} the {club} club, together with {extra} students from other "
        f"classes. How many students are in the {club} club?",
        f"A class has {total} students. {part} of the class is in the {club} club. {extra} students of other classes are in it too. How many "
        f"members does the club have?",
        f"{part} of the {total} students of a class sign up for the {club} club. Then {extra} more students from elsewhere sign up. How many have signed up?",
    )
    return [f"From the class there are {div(total, k)} students.", f"In all there are {add(each, extra)} students."], each + extra


def dozens(d):
    p, x = d.person(), d.food()
    n = d.n(2, 9)
    used = d.n(2, n * 12 - 2)
    d.ask(
        f"{p} {d.w('buys|bakes|brings')} {d.c(n)} dozen {x}. {used} of them are eaten. How many {x} are left?",
        f"There are {d.c(n)} dozen {x} in the kitchen. {p} uses {used} of them. How many {x} remain?",
        f"{p} had {d.c(n)} dozen {x} and sold {used}. How many {x} does {p.he} still have?",
        f"A baker makes {d.c(n)} dozen {x}. {p} buys {used} of these {x}. How many does the baker have then?",
    )
    return [f"There are {mul(n, 12)} {x}.", f"Then {sub(n * 12, used)} {x} are left."], n * 12 - used


def growing_days(d):
    p, x = d.person(), d.anything()
    a, k, b = d.n(3, 25), d.n(2, 3), d.n(2, 15)
    one, two, three = d.pick([("Monday", "Tuesday", "Wednesday"), ("Friday", "Saturday", "Sunday"), ("Tuesday", "Wednesday", "Thursday")])
    times = {2: "twice", 3: "three times"}[k]
    d.ask(
        f"On {one} {p} sold {a} {x}. On {two} {p.he} sold {times} as many as on {one}. On {three} {p.he} sold {b} more than on {two}. How many {x} did "
        f"{p.he} sell {d.w('in all|in total|in the three days')}?",
        f"{p} picks {a} {x} on {one}, {times} as many on {two}, and on {three} {b} more than on {two}. How many {x} does {p.he} pick altogether?",
        f"{p} made {a} {x} on {one}. The number for {two} is {times} that of {one}. The number for {three} is {b} more than that of {two}. What is the total?",
    )
    m = a * k
    return [f"On {two} it is {mul(a, k)} {x}.", f"On {three} it is {add(m, b)} {x}.",
            f"In all that is {add(a, m, m + b)} {x}."], a + m + m + b


def library(d):
    p = d.person()
    n, k, out, back = d.n(4, 20), d.n(6, 12), d.n(5, 30), d.n(2, 20)
    out = min(out, n * k - 1)
    d.ask(
        f"A library has {n} shelves with {d.c(k)} books each. {out} books are borrowed and {back} books are {d.w('returned|brought back')}. How many books are on the "
        f"shelves then?",
        f"Each of the {n} shelves in a library holds {d.c(k)} books. {p} lends out {out} books and puts {back} others back. How many books stand on the "
        f"shelves now?",
        f"{p} fills {n} shelves with {d.c(k)} books on each. Then {out} books are taken away and {back} new ones are added. How many books are there?",
    )
    s = n * k
    return [f"The shelves hold {mul(n, k)} books.", f"After borrowing there are {sub(s, out)} books.",
            f"After that there are {add(s - out, back)} books."], s - out + back


def teams(d):
    k, n, balls = d.n(3, 9), d.n(2, 12), d.n(2, 6)
    p = d.person()
    total = k * n
    d.ask(
        f"{total} children form teams of {d.c(k)}. Each team gets {d.c(balls)} balls. How many balls are needed?",
        f"{p} divides {total} players into teams of {d.c(k)} and gives every team {d.c(balls)} balls. How many balls does {p.he} hand out?",
        f"A camp has {total} children in groups of {d.c(k)}. Every group needs {d.c(balls)} ropes. How many ropes does the camp need?",
        f"In a school {total} students work in groups of {d.c(k)}. Each group uses {d.c(balls)} sheets of paper. How many sheets are used?",
    )
    what = "balls"
    for word in ("ropes", "sheets"):
        if word in d.question:
            what = word
    return [f"There are {div(total, k)} groups.", f"They need {mul(n, balls)} {what}."], n * balls


def average(d):
    p = d.person()
    count = d.n(3, 4)
    mean = d.n(18, 45)
    values = [mean + d.n(-5, 5) for _ in range(count - 1)]
    values.append(mean * count - sum(values))
    text = ", ".join(map(str, values[:-1])) + f" and {values[-1]}"
    what, verb = d.pick([("points", "scored"), ("pages", "read"), ("laps", "ran"), ("apples", "picked"), ("letters", "wrote")])
    d.ask(
        f"In {d.c(count)} {d.w('days|weeks')} {p} {verb} {text} {what}. What is the average?",
        f"{p} {verb} {text} {what} on {d.c(count)} days. How many {what} is that on average per day?",
        f"The numbers of {what} that {p} {verb} are {text}. What is their mean?",
    )
    return [f"The sum is {add(*values)}.", f"The average is {div(mean * count, count)}."], mean


def trips(d):
    p, x = d.person(), d.anything()
    k, n, a = d.n(4, 12), d.n(3, 15), 0
    total = k * n
    a = d.n(5, total - 2)
    vehicle = d.w("cart|wagon|van|truck|boat")
    d.ask(
        f"{p} has to carry {a} {x} from one shop and {total - a} {x} from another. {p.His} {vehicle} takes {d.c(k)} {x} at a time. How many trips does "
        f"{p.he} need?",
        f"There are {a} {x} in one room and {total - a} in another. A {vehicle} carries {d.c(k)} {x} per trip. How many trips are needed for all of them?",
        f"A {vehicle} can hold {d.c(k)} {x}. {p} must move {a} {x} and then {total - a} more. How many times does {p.he} have to drive?",
    )
    return [f"There are {add(a, total - a)} {x}.", f"That takes {div(total, k)} trips."], n


def missing_part(d):
    p, q, s, x = d.person(), d.person(), d.person(), d.anything()
    a, b, c = d.n(5, 60), d.n(5, 60), d.n(5, 60)
    total = a + b + c
    d.ask(
        f"{p}, {q} and {s} have {total} {x} together. {p} has {a} and {q} has {b}. How many {x} does {s} have?",
        f"Together {p}, {q} and {s} collected {total} {x}. {a} of them are from {p} and {b} from {q}. How many did {s} collect?",
        f"There are {total} {x} in a box. {a} belong to {p}, {b} belong to {q}, and the rest belong to {s}. How many {x} belong to {s}?",
    )
    return [f"{p} and {q} have {add(a, b)} {x}.", f"{s} has {sub(total, a + b)} {x}."], c


KINDS = [chain, more_than, fewer_than, times_as_many, three_people, share_then_more, boxes, packing, pages, bus, seats, garden,
         legs, give_to_friends, score, game_score, who_made_more, fraction_rest, class_split, dozens, growing_days, library,
         teams, average, trips, missing_part]

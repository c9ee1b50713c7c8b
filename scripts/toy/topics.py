"""What the small models are taught to talk about: words by kind, questions and stories
about them. `prompts.py` combines them."""

# Words by kind; two-word names are joined with `_`.
WORDS = {
    "animal": """cat dog fox bear rabbit mouse owl duck horse cow pig sheep goat hen rooster frog turtle snake
        lion tiger elephant giraffe monkey zebra wolf deer squirrel hedgehog bat bee ant butterfly spider snail
        whale dolphin shark fish octopus crab seal penguin parrot eagle crow swan goose pigeon robin hamster
        guinea_pig pony donkey camel kangaroo koala panda crocodile lizard beaver otter badger mole raccoon
        caterpillar ladybug firefly worm starfish jellyfish peacock ostrich flamingo hippo rhino leopard moose
        polar_bear sparrow kitten puppy lamb""",
    "food": """bread soup pizza pasta rice salad cake pie cheese butter milk yogurt honey jam chocolate ice_cream
        apple banana orange pear grape strawberry cherry lemon peach melon pineapple mango carrot potato tomato
        onion garlic pepper cucumber pumpkin corn bean pea cabbage spinach mushroom egg pancake waffle sandwich
        burger noodle dumpling curry stew porridge cereal toast biscuit cookie muffin popcorn nut olive tea
        coffee juice lemonade hot_chocolate omelette taco sushi""",
    "object": """book pen pencil notebook lamp chair table bed door window key lock clock mirror cup plate spoon
        fork knife bowl bottle box bag basket umbrella hat coat shoe sock glove scarf blanket pillow towel soap
        brush comb candle rope ladder hammer nail saw needle thread button coin map compass kite balloon ball
        doll puzzle drum guitar piano violin flute telephone computer camera radio television robot bicycle car
        bus train boat ship plane truck tractor bridge lighthouse windmill fence well tent backpack telescope
        microscope magnet battery light_bulb fridge oven kettle broom bucket vase painting letter stamp
        newspaper calendar wheel flag ring crown treasure_chest""",
    "nature": """rain snow wind storm thunder lightning cloud rainbow fog ice sun moon star sky river lake sea
        ocean wave beach island mountain hill valley forest jungle desert cave waterfall volcano earthquake
        flower rose tulip sunflower daisy tree oak pine leaf seed root grass bush moss rock sand soil mud fire
        water air shadow light sunrise sunset spring summer autumn winter day night tide pond stream meadow
        garden planet comet dew frost hail echo""",
    "place": """school library hospital museum park zoo farm bakery restaurant market supermarket bank post_office
        airport train_station playground theater cinema church castle village town city kitchen bedroom
        bathroom garage attic basement office factory bookshop swimming_pool stadium gym hotel campsite harbor
        fire_station police_station university workshop bus_stop cafe""",
    "job": """teacher doctor nurse farmer baker cook waiter firefighter police_officer pilot sailor captain driver
        mechanic builder carpenter painter artist singer musician dancer actor writer poet journalist scientist
        engineer programmer dentist vet gardener tailor shopkeeper librarian photographer lawyer judge soldier
        astronaut explorer inventor fisherman shepherd plumber electrician postman cleaner coach clown
        magician king queen knight""",
    "feeling": """happiness sadness anger fear love hope joy surprise pride shame guilt envy boredom loneliness
        courage patience kindness trust curiosity excitement worry stress gratitude calm friendship honesty
        respect jealousy disappointment confidence""",
    "activity": """reading writing drawing painting singing dancing cooking baking gardening fishing hiking camping
        swimming running walking cycling climbing skiing skating sailing surfing yoga chess photography
        knitting sewing traveling shopping cleaning studying playing_football playing_tennis playing_basketball
        playing_the_piano playing_the_guitar learning_a_language watching_movies listening_to_music
        telling_jokes making_friends saving_money getting_up_early sleeping_well eating_healthy_food
        drinking_water helping_others taking_a_break flying_a_kite building_a_snowman feeding_birds
        riding_a_bike meditating journaling volunteering recycling""",
    "idea": """time money music art science history math language electricity gravity energy heat sound color
        weather health sleep dreams memory school homework family home work holiday birthday party game sport
        internet law news peace war democracy tradition culture religion future past luck success failure
        teamwork freedom safety pollution recycling climate evolution bacteria vaccine blood heart brain bones
        muscles skin teeth eyes ears nose tongue breathing""",
}

# Of food and nature: what has no plural, and what there is one of; all else is spoken of in the plural.
MASS = set("""bread soup pizza pasta rice salad cake pie cheese butter milk yogurt honey jam chocolate ice_cream garlic
    pepper corn cabbage spinach curry stew porridge cereal toast popcorn tea coffee juice lemonade hot_chocolate sushi
    rain snow wind thunder lightning fog ice grass moss sand soil mud fire water air light spring summer autumn winter
    dew frost hail""".split())
ONLY_ONE = set("sun moon sky sea".split())

# Questions by kind: {x} is the word, {a} the word with its article, {s} its plural, {f} the word as one
# speaks of the thing in general (cheese, apples, the sun), {is} and {does} the verb that goes with {f}.
QUESTIONS = {
    "animal": """What is {a}?|Tell me about {s}.|What do {s} eat?|Where do {s} live?|Why do people like {s}?
        |Are {s} dangerous?|How does {a} spend its day?|What does {a} look like?|What is special about {s}?
        |Tell me a fun fact about {s}.|Can I keep {a} as a pet?|How can I draw {a}?|What sound does {a} make?
        |Describe {a} in one sentence.|Are {s} smart?|Why are {s} important?|How can I help {s}?|How do {s} take care of their babies?""",
    "food": """What {is} {f}?|How do you make {f}?|{Is} {f} healthy?|What {does} {f} taste like?|Tell me about {f}.
        |What goes well with {f}?|Where {does} {f} come from?|Do you like {f}?|When do people eat {f}?
        |How should I keep {f} fresh?|Describe {f} in one sentence.|What can I make with {f}?|Why do people like {f}?
        |Should I eat {f} every day?|Is it good to have {f} for breakfast?""",
    "object": """What is {a}?|What is {a} used for?|How does {a} work?|Tell me about {s}.|Why do people need {s}?
        |What is {a} made of?|How do I take care of {a}?|Who invented the {x}?|Describe {a} in one sentence.
        |Where can I find {a}?|How can I choose a good {x}?""",
    "nature": """What {is} {f}?|Why {is} there {f}?|Tell me about {f}.|How {does} {f} form?|Why {is} {f} important?
        |What {does} {f} look like?|Why do people like {f}?|Describe {f} in one sentence.|{Is} {f} dangerous?
        |Tell me a fun fact about {f}.|Write two sentences about {f}.|When can I see {f}?|How can I paint {f}?""",
    "place": """What is {a}?|What can you do at {a}?|Who works at {a}?|Tell me about {s}.|Why do people go to {a}?
        |What do you see in {a}?|How should I behave at {a}?|Describe {a} in one sentence.|What is the best thing about {a}?""",
    "job": """What does {a} do?|How do I become {a}?|Why are {s} important?|Is it hard to be {a}?
        |What tools does {a} use?|Where does {a} work?|Tell me about {s}.|What makes a good {x}?
        |Describe the day of {a}.|Would you like to be {a}?""",
    "feeling": """What is {x}?|How does {x} feel?|Why do people feel {x}?|How can I deal with {x}?|Tell me about {x}.
        |Is {x} good or bad?|When do people feel {x}?|Describe {x} in one sentence.|How do I talk about {x} with a friend?""",
    "activity": """Why do people like {x}?|How do I start {x}?|Give me a tip for {x}.|Is {x} good for me?
        |Tell me about {x}.|What do I need for {x}?|How can I get better at {x}?|When is a good time for {x}?
        |Is {x} hard?|What are the benefits of {x}?""",
    "idea": """What is {x}?|Why is {x} important?|Tell me about {x}.|How does {x} work?|Explain {x} to a child.
        |Describe {x} in one sentence.|What should I know about {x}?|Why do people care about {x}?
        |Tell me a fun fact about {x}.""",
}

# Stories: {a} and {b} are words with articles, {place} a place, {trait} a trait.
STORIES = """Tell me a story about {a}.|Tell me a short story about {a} and {b}.|Write a bedtime story about {a}.
    |Write a story about {a} who is {trait}.|Tell me a story about {a} in {place}.|Tell me a funny story about {a}.
    |Write a very short story about {a} and {b}.|Tell me a story about {a} who finds {b}.
    |Can you tell me a story about {a}?|I want to hear a story about {a}.|Make up a story about {a} who is {trait}.
    |Tell me a story with {a} and {b} in {place}."""

TRAITS = """brave shy lazy kind hungry lost curious lonely clever proud sleepy afraid_of_the_dark new_in_town very_small
    very_tall always_late good_at_singing learning_to_fly looking_for_a_friend helpful grumpy cheerful forgetful
    patient greedy honest""".split()

NAMES = """Anna Ben Clara David Emma Felix Grace Henry Ida Jack Kate Leo Lily Max Mia Nina Noah Oliver Olivia Paul Rosa
    Sam Sara Sofia Tim Tom Lucy Peter Alice Daniel Ella Fred Hannah James John Julia Laura Lucas Maria Mark Mary
    Nora Robert Ruth Simon Susan Thomas William Amy Jane"""

# Words for patterns.txt, and objects that are only there.
MORE_OBJECTS = """phone laptop watch wallet jacket bike game ticket passport toy skateboard sweater lunch homework cap
    sandwich necklace purse helmet"""
OTHERS = {
    "who": """brother sister mother father friend cousin aunt uncle grandmother grandfather neighbor son daughter
        classmate boss husband wife best_friend dad mom""",
    "mood": """sad happy tired bored lonely nervous angry worried excited calm grumpy lazy hopeful proud sleepy
        restless confused stressed cheerful""",
    "n": "2 3 4 5 7 8 9 10 12 15 20 31 100",
    "m": "1 2 3 6 8 10 11 14 25 40 99",
    "sport": "football soccer tennis basketball chess hockey",
    "weather": """rainy sunny cold hot windy cloudy snowy gray foggy warm stormy wet dark cool""",
    "day": """morning evening day afternoon night""",
}
